// SPDX-License-Identifier: Apache-2.0
//
// The layout of a batch's tensors in its memory, and the copies from a frame to it. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gpurx/ingest/tensor_spec.hpp>

namespace gpurx::ingest::detail {

// Bytes of a frame's payload that go to a batch's memory.
struct row_copy {
    std::size_t from = 0;
    std::size_t to = 0;
    std::size_t size = 0;

    friend bool operator==(row_copy const&, row_copy const&) = default;
};

class batch_layout {
  public:
    // Alignment of a GPU's and PyTorch's allocators.
    static constexpr std::size_t alignment = 256;

    // Throws system_error, errc::bad_frame, if this number of rows has more than `limit` bytes.
    batch_layout(std::vector<tensor_spec> tensors, std::size_t rows, std::uint64_t limit);

    [[nodiscard]] std::span<tensor_spec const> tensors() const noexcept { return tensors_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::size_t offset(std::size_t tensor) const noexcept { return offsets_[tensor]; }
    [[nodiscard]] std::size_t row_size(std::size_t tensor) const noexcept { return row_sizes_[tensor]; }

    // Computes the copies of `count` rows: from row `from` of a frame of `frame_rows`, to row `to` of a batch. There is
    // one copy for each tensor.
    void copies(std::size_t frame_rows, std::size_t from, std::size_t to, std::size_t count,
                std::vector<row_copy>& result) const;

  private:
    std::vector<tensor_spec> tensors_;
    std::vector<std::size_t> row_sizes_;
    std::vector<std::size_t> offsets_;
    std::size_t size_ = 0;
};

}  // namespace gpurx::ingest::detail
