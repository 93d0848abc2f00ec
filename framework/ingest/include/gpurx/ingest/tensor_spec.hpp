// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Names, types and rows of a stream's tensors, and limits of its frames.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gpurx/ingest/dtype.hpp>
#include <gpurx/ingest/error.hpp>

namespace gpurx::ingest {

/// @brief One tensor of a stream, without its first dimension.
///
/// The first dimension is the number of rows. It differs from frame to frame.
struct tensor_spec {
    std::string name;  ///< Name: 1 to 15 printable ASCII characters without spaces.

    /// @brief Type of the elements.
    dtype type = dtype::u8;
    /// @brief Shape of a row: at most 7 dimensions, none of them 0. If empty, a row is one element.
    std::vector<std::uint64_t> row_shape;

    friend bool operator==(tensor_spec const&, tensor_spec const&) = default;
};

/// @brief Returns the bytes of one row of a tensor.
/// @throws system_error errc::bad_frame: a row is not a whole number of bytes, or its bits exceed a `std::int64_t`.
[[nodiscard]] std::uint64_t row_size(tensor_spec const& tensor);
/// @brief Returns the bytes of one row of all tensors; otherwise as above.
[[nodiscard]] std::uint64_t row_size(std::span<tensor_spec const> tensors);

/// @brief Limits of one frame, for receivers.
struct frame_limits {
    std::uint64_t frame_size = std::uint64_t{256} << 20;  ///< Most bytes of a frame's payload.
    std::uint32_t tensors = 64;                           ///< Most tensors of a frame.
};

}  // namespace gpurx::ingest
