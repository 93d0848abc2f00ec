// SPDX-License-Identifier: Apache-2.0
//
// Rows of tensors, from a .npy file, an IDX file (MNIST's format), raw bytes, or synthetic; and the frames of a source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <gpurx/ingest/tensor_sender.hpp>
#include <gpurx/ingest/tensor_spec.hpp>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "options.hpp"

struct tensor_rows {
    gpurx::ingest::tensor_spec spec;
    std::uint64_t rows = 0;
    std::shared_ptr<void const> owner;  // of the bytes
    std::span<std::byte const> bytes;   // row after row, as they go to the wire
};

// Opens the tensor of an argument NAME=FILE, NAME=FILE:DTYPE:SHAPE or NAME=synthetic:DTYPE:SHAPE. Throws
// std::runtime_error, whose text has the argument and its mistake.
tensor_rows open_tensor(std::string const& argument, std::uint64_t synthetic_rows);

// A frame always has the same rows, so that another process can continue.
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
