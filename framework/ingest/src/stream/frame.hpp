// SPDX-License-Identifier: Apache-2.0
//
// The frames of a tensor stream (docs/tensor-stream.md). tensor_sender encodes them, tensor_stream parses them. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gpurx/ingest/tensor_spec.hpp>

namespace gpurx::ingest::detail {

// Sizes on the wire, in bytes.
inline constexpr std::size_t frame_start_size = 48;
inline constexpr std::size_t frame_tensor_size = 80;
inline constexpr std::size_t frame_ack_size = 8;

// The head in front of a payload.
struct frame_head {
    std::uint32_t source = 0;
    std::uint64_t sequence = 0;  // counts the frames of a source, from 0
    std::uint64_t rows = 0;      // 0 if and only if there are no tensors: a frame that only says is_last or ends_epoch
    bool wants_ack = false;
    bool is_last = false;     // of its source
    bool ends_epoch = false;  // its source's last in this epoch; others follow in the next. Not with is_last
    // The sender has not sent before: the first frame of its first connection, sequence 0. It is refused if the source
    // has, or had, another sender.
    bool begins = false;
    bool has_crc = false;
    std::uint32_t payload_crc = 0;  // CRC32C, if has_crc
    std::vector<tensor_spec> tensors{};

    // Throws system_error, errc::bad_frame, if the size overflows. Parsed and encoded heads never do.
    [[nodiscard]] std::uint64_t payload_size() const;
    friend bool operator==(frame_head const&, frame_head const&) = default;
};

// Returns the bytes of a head. The payload follows: each tensor's rows, tensor after tensor, without gaps. Throws
// system_error, errc::bad_frame, if no receiver would accept the frame.
[[nodiscard]] std::vector<std::byte> encode(frame_head const& head);

// Checks the first frame_start_size bytes. Returns the number of tensors that follow, of frame_tensor_size bytes each.
// Throws system_error, errc::bad_frame, with the reason in its advice.
[[nodiscard]] std::uint32_t count_tensors(std::span<std::byte const, frame_start_size> start,
                                          frame_limits const& limits = {});
// Parses all of the head. It first checks everything: with has_crc the CRC32C, then every field, and that the payload's
// size agrees with rows, shapes and types. Throws as above.
[[nodiscard]] frame_head parse_head(std::span<std::byte const> head, frame_limits const& limits = {});

// Acknowledges all frames of a source up to this sequence.
[[nodiscard]] std::array<std::byte, frame_ack_size> encode_ack(std::uint64_t sequence) noexcept;
[[nodiscard]] std::uint64_t parse_ack(std::span<std::byte const, frame_ack_size> ack) noexcept;

}  // namespace gpurx::ingest::detail
