// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The safetensors format: headers of files, and layouts in memory.
///
/// The format (github.com/huggingface/safetensors, section "Format") has three parts:
/// - The size of the header: 8 bytes, lowest byte first.
/// - The header, JSON, which may end in spaces: `{"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},`
///   `…, "__metadata__": {"key": "text", …}}`.
/// - The bytes of all tensors, without a gap, row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/ingest/dtype.hpp>
#include <gpurx/ingest/error.hpp>
#include <gpurx/ingest/http.hpp>
#include <gpurx/ingest/object.hpp>
#include <gpurx/views.hpp>

namespace gpurx::ingest {

/// @brief Most bytes of a header, by the format's own limit.
inline constexpr std::uint64_t safetensors_header_limit = 100'000'000;
/// @brief Bytes in front of the header. They have its size.
inline constexpr std::size_t safetensors_prefix = 8;

/// @brief One tensor of a file.
struct safetensor {
    std::string name;  ///< Name.

    /// @brief Type of the elements.
    dtype type{};
    /// @brief Shape, row-major. Empty for a scalar.
    ///
    /// The number of bits of all elements fits a `std::int64_t`; dimensions of 0 do not count.
    std::vector<std::uint64_t> shape;
    std::uint64_t offset = 0;  ///< Offset of the first byte in the file.
    std::uint64_t size = 0;    ///< Size in bytes.

    friend bool operator==(safetensor const&, safetensor const&) = default;
};

/// @brief The header of a file.
struct safetensors_header {
    std::vector<safetensor> tensors;              ///< Tensors in the order of their bytes in the file.
    std::map<std::string, std::string> metadata;  ///< Text of `__metadata__` by key.
};

/// @brief Reads the size of the header from the file's first 8 bytes.
/// @param prefix First bytes of the file.
/// @param file_size Size of the file in bytes.
/// @returns Size of the header in bytes.
/// @throws system_error errc::bad_safetensors: a file of this size cannot have such a header.
[[nodiscard]] std::uint64_t safetensors_header_size(std::span<std::byte const, safetensors_prefix> prefix,
                                                    std::uint64_t file_size);

/// @brief Parses the header of a file.
///
/// The function checks everything: UTF-8, repeated names, dtypes, shapes that overflow or do not fit their bytes,
/// overlapping tensors, gaps, ends.
///
/// @param text The header.
/// @param file_size Size of the file in bytes.
/// @returns Tensors and metadata.
/// @throws system_error errc::bad_safetensors: the diagnostics name the mistake and the tensor.
[[nodiscard]] safetensors_header parse_safetensors(std::string_view text, std::uint64_t file_size);

/// @brief Places of tensors in one block of memory.
struct tensor_layout {
    std::vector<std::uint64_t> offsets;  ///< Offset of each tensor in the block.
    std::uint64_t size = 0;              ///< Size of the block in bytes.
};

/// @brief Lays out tensors in the order of the file.
///
/// Neighbours can then be received as one.
///
/// Each tensor begins at a multiple of its element's size and of 16, as vector loads and cuBLAS require. If a tensor
/// would not begin there, the function moves it to the next multiple of 256.
[[nodiscard]] tensor_layout lay_out(std::span<safetensor const> tensors);

/// @brief Returns the placements of tensors for object::async_fetch().
///
/// Neighbours in file and block become one placement.
/// @param tensors Tensors to place.
/// @param layout Layout of the tensors, from lay_out().
/// @param block Memory to place them in.
/// @throws std::out_of_range If `block` is smaller than the layout, or if the layout has fewer tensors.
[[nodiscard]] std::vector<placement> placements_of(std::span<safetensor const> tensors, tensor_layout const& layout,
                                                   memory_span block);

/// @brief Reads the header of a file.
/// @pre The file is open, and none of its bytes were read.
[[nodiscard]] asio::awaitable<safetensors_header> async_read_safetensors_header(object& file);

}  // namespace gpurx::ingest
