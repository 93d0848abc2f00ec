// SPDX-License-Identifier: Apache-2.0
#include "batch_layout.hpp"

#include <fmt/format.h>

#include <utility>

namespace gpurx::ingest::detail {

namespace {

[[noreturn]] void refuse(std::size_t rows, std::uint64_t limit)
{
    throw system_error{errc::bad_frame,
                       {.operation = "make batch",
                        .object = {},
                        .kernel_message = {},
                        .advice = fmt::format("a batch of {} such rows has more than {} bytes: raise "
                                              "tensor_stream_options::max_batch_size, or lower batch_size",
                                              rows, limit)}};
}

}  // namespace

batch_layout::batch_layout(std::vector<tensor_spec> tensors, std::size_t rows, std::uint64_t limit)
    : tensors_{std::move(tensors)}
{
    std::uint64_t end = 0;
    for (auto const& tensor : tensors_) {
        auto const row = ingest::row_size(tensor);
        std::uint64_t all = 0;
        auto const begin = (end + alignment - 1) / alignment * alignment;
        if (__builtin_mul_overflow(row, rows, &all) || __builtin_add_overflow(begin, all, &end) || end > limit)
            refuse(rows, limit);
        row_sizes_.push_back(row);
        offsets_.push_back(begin);
    }
    size_ = end;
}

void batch_layout::copies(std::size_t frame_rows, std::size_t from, std::size_t to, std::size_t count,
                          std::vector<row_copy>& result) const
{
    result.clear();
    std::size_t tensor_begin = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
        auto const row = row_sizes_[i];
        result.push_back({tensor_begin + from * row, offsets_[i] + to * row, count * row});
        tensor_begin += frame_rows * row;
    }
}

}  // namespace gpurx::ingest::detail
