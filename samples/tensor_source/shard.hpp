// SPDX-License-Identifier: Apache-2.0
//
// Which rows a source sends in which frame. A frame has the same rows whenever it is asked for, so that another process
// can go on.
#pragma once

#include <cstdint>
#include <gpurx/ingest/tensor_sender.hpp>
#include <vector>

#include "options.hpp"
#include "tensor_file.hpp"

class shard {
  public:
    // Throws std::runtime_error if the tensors have different numbers of rows, or none.
    shard(std::vector<tensor_rows> tensors, options const& wanted);

    // Never 0: a source without a row sends an end.
    [[nodiscard]] std::uint64_t frames() const noexcept;

    // In the tensors' memory. Empty: a source without a row.
    [[nodiscard]] std::vector<gpurx::ingest::tensor_view> at(std::uint64_t frame) const;

  private:
    std::vector<tensor_rows> tensors_;
    std::uint64_t rows_ = 0;
    std::uint64_t rows_per_frame_ = 0;
    std::uint64_t frames_per_epoch_ = 0;  // of this source
    std::uint64_t epochs_;
    std::uint32_t source_;
    std::uint32_t sources_;
};
