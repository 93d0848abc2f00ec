// SPDX-License-Identifier: Apache-2.0
//
// What both ends of a tensor stream say of its tensors: names, types, the shape of a row, and how large a frame may be.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gpurx/ingest/dtype.hpp>
#include <gpurx/ingest/error.hpp>

namespace gpurx::ingest {

// One tensor of a stream, without its first dimension: that is the number of rows, which differs from frame to frame.
struct tensor_spec {
    std::string name;  // 1 to 15 printable ASCII characters, of which none is a space
    dtype type = dtype::u8;
    std::vector<std::uint64_t> row_shape;  // at most 7 dimensions, none of them 0; empty: one element a row

    friend bool operator==(tensor_spec const&, tensor_spec const&) = default;
};

// Bytes of one row. Throws system_error, errc::bad_frame, if they are no whole number, or their bits are more than a
// std::int64_t counts.
[[nodiscard]] std::uint64_t row_size(tensor_spec const& tensor);
[[nodiscard]] std::uint64_t row_size(std::span<tensor_spec const> tensors);

// What a receiver takes.
struct frame_limits {
    std::uint64_t frame_size = std::uint64_t{256} << 20;  // of a payload, in bytes
    std::uint32_t tensors = 64;
};

}  // namespace gpurx::ingest
