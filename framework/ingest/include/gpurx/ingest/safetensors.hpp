// SPDX-License-Identifier: Apache-2.0
//
// safetensors: the header of a file of tensors, and where each is to lie in memory.
//
// The format (github.com/huggingface/safetensors, format section): 8 bytes, the size of the header, lowest byte first;
// the header, JSON, which may end in spaces: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …,
// "__metadata__": {"key": "text", …}}; then the bytes of all tensors, without a gap, row-major.
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

// The format's own limit.
inline constexpr std::uint64_t safetensors_header_limit = 100'000'000;
// Bytes before the header: its size.
inline constexpr std::size_t safetensors_prefix = 8;

struct safetensor {
    std::string name;
    dtype type{};
    // Empty: a scalar. Row-major. The bits of all elements fit a std::int64_t, dimensions of 0 left out.
    std::vector<std::uint64_t> shape;
    // Bytes of the file.
    std::uint64_t offset = 0;
    std::uint64_t size = 0;

    friend bool operator==(safetensor const&, safetensor const&) = default;
};

struct safetensors_header {
    std::vector<safetensor> tensors;  // as they follow each other in the file
    std::map<std::string, std::string> metadata;
};

// The size of the header from the file's first 8 bytes. Errors: errc::bad_safetensors if a file of that
// size cannot have it.
[[nodiscard]] std::uint64_t safetensors_header_size(std::span<std::byte const, safetensors_prefix> prefix,
                                                    std::uint64_t file_size);

// Reads the header, `text`, of a file of that many bytes. Everything is checked: UTF-8, names that come twice, dtypes,
// shapes that overflow or do not fit their bytes, tensors that overlap, gaps, ends. Errors: errc::bad_safetensors; the
// text says what is wrong and with which tensor.
[[nodiscard]] safetensors_header parse_safetensors(std::string_view text, std::uint64_t file_size);

// Where tensors lie in one block of memory.
struct tensor_layout {
    std::vector<std::uint64_t> offsets;  // of each, in the block
    std::uint64_t size = 0;              // of the block
};

// As they follow each other in the file, so that neighbours are received as one; only a tensor that would not begin at
// a multiple of its element's size and of 16 (as vector loads and cuBLAS ask for) is moved on, to a multiple of 256.
[[nodiscard]] tensor_layout lay_out(std::span<safetensor const> tensors);

// For object::async_fetch: neighbours in the file and in the block as one. Throws
// std::out_of_range if `block` is smaller than the layout, or the layout is one of fewer tensors.
[[nodiscard]] std::vector<placement> placements_of(std::span<safetensor const> tensors, tensor_layout const& layout,
                                                   memory_span block);

// Reads the header of a file that is open, and not read yet.
[[nodiscard]] asio::awaitable<safetensors_header> async_read_safetensors_header(object& file);

}  // namespace gpurx::ingest
