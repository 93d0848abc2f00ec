// SPDX-License-Identifier: Apache-2.0
#include "shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

shard::shard(std::vector<tensor_rows> tensors, options const& wanted)
    : tensors_{std::move(tensors)},
      rows_{tensors_.front().rows},
      epochs_{wanted.epochs},
      source_{wanted.source},
      sources_{wanted.sources}
{
    constexpr std::uint64_t good_frame_size = 4 << 20;
    std::uint64_t row = 0;  // bytes, of all tensors
    for (auto const& tensor : tensors_) {
        row += row_size(tensor.spec);
        if (tensor.rows != rows_)
            throw std::runtime_error{fmt::format("{} has {} rows, and {} has {}", tensor.spec.name, tensor.rows,
                                                 tensors_.front().spec.name, rows_)};
    }
    rows_per_frame_ = wanted.rows_per_frame > 0
                          ? wanted.rows_per_frame
                          : std::max<std::uint64_t>(good_frame_size / std::max<std::uint64_t>(row, 1), 1);
    auto const all = (rows_ + rows_per_frame_ - 1) / rows_per_frame_;
    frames_per_epoch_ = all / sources_ + (all % sources_ > source_ ? 1 : 0);
}

std::uint64_t shard::frames() const noexcept
{
    return std::max<std::uint64_t>(epochs_ * frames_per_epoch_, 1);
}

std::vector<gpurx::ingest::tensor_view> shard::at(std::uint64_t frame) const
{
    std::vector<gpurx::ingest::tensor_view> result;
    if (frames_per_epoch_ == 0)
        return result;
    auto const first = (frame % frames_per_epoch_ * sources_ + source_) * rows_per_frame_;
    auto const rows = std::min(rows_per_frame_, rows_ - first);
    for (auto const& tensor : tensors_) {
        auto const row = row_size(tensor.spec);
        result.push_back({tensor.spec, tensor.bytes.subspan(first * row, rows * row)});
    }
    return result;
}
