// SPDX-License-Identifier: Apache-2.0
//
// The protocol of gpurx-perf's client and server, and the bytes of the load. Pure.
//
// On each connection the client sends a request and waits for a greeting, which the server sends on all of them once
// the last has come: the round begins. The load is messages of one size, each full of the pattern. The server answers
// with acknowledgements: how many messages it has had whole, 8 bytes. At the end of the load (FIN), when all of it is
// acknowledged, it sends `end_of_load`, and on flow 0 a result behind it. Numbers are little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace gpurx::perf {

// One connection of a round.
struct request {
    std::uint32_t flow = 0;
    std::uint32_t flows = 1;
    std::uint32_t message_size = 0;
    std::uint32_t warm_up_ms = 0;
    std::uint32_t measured_ms = 0;  // after that

    friend bool operator==(request const&, request const&) = default;
};

struct greeting {
    std::string setting;    // how the server receives in this round, for people; 127 bytes at most
    std::string transport;  // 31 bytes at most

    friend bool operator==(greeting const&, greeting const&) = default;
};

// Of the time that is measured.
struct result {
    std::uint64_t bytes = 0;
    std::uint64_t nanoseconds = 0;
    std::uint64_t process_cpu_ns = 0;  // of the server
    std::uint64_t machine_cpu_ns = 0;  // of all that ran on its machine, interrupts too
    std::uint64_t wrong_words = 0;     // that are not of the pattern; all 0 if that was not looked at
    std::uint64_t verified = 0;        // bytes

    friend bool operator==(result const&, result const&) = default;
};

inline constexpr std::size_t request_size = 32;
inline constexpr std::size_t greeting_size = 160;
inline constexpr std::size_t result_size = 48;
inline constexpr std::uint32_t largest_message = 64U << 20;
inline constexpr std::uint32_t most_flows = 64;
inline constexpr std::uint64_t end_of_load = ~std::uint64_t{0};

[[nodiscard]] std::array<std::byte, request_size> encode(request const& what);
[[nodiscard]] std::array<std::byte, greeting_size> encode(greeting const& what);
[[nodiscard]] std::array<std::byte, result_size> encode(result const& what);
[[nodiscard]] std::array<std::byte, 8> encode(std::uint64_t acknowledged);

// Empty: it is of something else, or no round can be like that.
[[nodiscard]] std::optional<request> decode_request(std::span<std::byte const, request_size> from);
[[nodiscard]] greeting decode_greeting(std::span<std::byte const, greeting_size> from);
[[nodiscard]] result decode_result(std::span<std::byte const, result_size> from);
[[nodiscard]] std::uint64_t decode_acknowledged(std::span<std::byte const, 8> from);

// The load is words of 8 bytes that say where in their flow's stream they are: bytes that are lost, doubled or
// displaced are seen.
// `offset`: of the first byte in the stream; a multiple of 8, and so is the size.
void fill_pattern(std::span<std::byte> to, std::uint32_t flow, std::uint64_t offset) noexcept;

// Bytes of one flow's stream, in pieces of any size.
class pattern_check {
  public:
    explicit pattern_check(std::uint32_t flow) noexcept : flow_{flow} {}

    // The next ones.
    void take(std::span<std::byte const> bytes) noexcept;
    [[nodiscard]] std::uint64_t bytes() const noexcept { return offset_; }
    // Words that have a byte that is not the pattern's; one that lies in two pieces may count twice.
    [[nodiscard]] std::uint64_t wrong_words() const noexcept { return wrong_words_; }

  private:
    void take_part(std::span<std::byte const> bytes) noexcept;

    std::uint32_t flow_;
    std::uint64_t offset_ = 0;
    std::uint64_t wrong_words_ = 0;
};

}  // namespace gpurx::perf
