// SPDX-License-Identifier: Apache-2.0
#include "slice_reads.hpp"

#include <algorithm>
#include <stdexcept>

namespace gpurx::python {

namespace {

std::uint64_t whole_bytes(std::uint64_t elements, unsigned bits)
{
    if (elements * bits % 8 != 0)
        throw std::invalid_argument{
            "the slice does not begin and end at whole bytes, as elements of this type are smaller than a byte"};
    return elements * bits / 8;
}

bool is_all(extent const& taken, std::uint64_t size)
{
    return taken.begin == 0 && taken.count == size && (taken.step == 1 || size == 1);
}

}  // namespace

box::box(std::span<std::uint64_t const> shape, std::span<extent const> extents, unsigned bits)
{
    if (std::ranges::any_of(extents, [](extent const& each) { return each.count == 0; }))
        return;
    auto left = shape.size();
    std::uint64_t stride = 1;  // elements
    std::uint64_t begin = 0;
    for (; left > 0 && is_all(extents[left - 1], shape[left - 1]); --left)
        stride *= shape[left - 1];
    auto run = stride;
    if (left > 0 && (extents[left - 1].step == 1 || extents[left - 1].count == 1)) {
        --left;
        begin = extents[left].begin * stride;
        run *= extents[left].count;
        stride *= shape[left];
    }
    run_size_ = whole_bytes(run, bits);
    runs_ = 1;
    for (auto i = left; i-- > 0; stride *= shape[i]) {
        begin += extents[i].begin * stride;
        runs_ *= extents[i].count;
        if (extents[i].count > 1)
            outer_.insert(outer_.begin(), {extents[i].count, whole_bytes(extents[i].step * stride, bits), 0});
    }
    offset_ = whole_bytes(begin, bits);
}

void box::advance() noexcept
{
    ++done_;
    for (auto i = outer_.size(); i-- > 0;) {
        auto& each = outer_[i];
        offset_ += each.stride;
        if (++each.at < each.count)
            return;
        offset_ -= each.stride * each.count;
        each.at = 0;
    }
}

std::vector<slice_read> next_reads(box& from, std::uint64_t& to, slice_limits const& limits)
{
    std::vector<slice_read> reads;
    std::uint64_t memory = 0;
    std::size_t runs = 0;
    for (; !from.is_done() && runs < limits.runs && memory < limits.memory; from.advance(), ++runs) {
        auto const run = from.current();
        auto const end = run.offset + run.size;
        auto* const last = reads.empty() ? nullptr : &reads.back();
        auto const is_close = last != nullptr && run.offset - (last->file.offset + last->file.size) <= limits.gap &&
                              end - last->file.offset <= limits.read;
        if (is_close) {
            if (last->runs.empty()) {
                last->runs.push_back(last->file);
                memory += last->file.size;
            }
            memory += end - (last->file.offset + last->file.size);
            last->file.size = end - last->file.offset;
            last->runs.push_back(run);
        } else {
            reads.push_back({run, to, {}});
        }
        to += run.size;
    }
    return reads;
}

}  // namespace gpurx::python
