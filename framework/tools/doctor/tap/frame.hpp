// SPDX-License-Identifier: Apache-2.0
//
// The headers of a frame, as the tap takes it. No I/O.
#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace gpurx::doctor::tap {

using moment = std::chrono::nanoseconds;  // since the epoch

// One end of a flow. An IPv4 address has the first four bytes.
struct socket_end {
    bool v6 = false;
    std::array<std::uint8_t, 16> address{};
    std::uint16_t port = 0;

    friend auto operator<=>(socket_end const&, socket_end const&) = default;
};
// "10.0.0.1:5000", "[fd00::1]:5000"
[[nodiscard]] std::string to_string(socket_end const& end);

struct segment {
    socket_end source;
    socket_end destination;
    std::uint32_t sequence = 0;
    std::uint32_t acknowledgement = 0;
    bool syn = false;
    bool fin = false;
    bool rst = false;
    bool ack = false;
    std::uint16_t window = 0;  // as it is in the header: without the scale
    std::optional<std::uint8_t> window_scale{};
    std::optional<std::uint32_t> timestamp{};  // of the sender's clock
    std::optional<std::uint16_t> id{};         // of IPv4
    std::uint32_t payload = 0;                 // bytes
    std::uint32_t headers = 0;                 // bytes before the payload
    bool readable = false;                     // payload came with them: the host can read it
};

// Takes what the filter has let through of a frame that was `length` bytes. Nothing: it is no whole TCP header.
[[nodiscard]] std::optional<segment> parse_frame(std::span<std::byte const> captured, std::size_t length);

}  // namespace gpurx::doctor::tap
