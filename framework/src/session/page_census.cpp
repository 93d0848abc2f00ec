// SPDX-License-Identifier: Apache-2.0
#include "page_census.hpp"

#include <algorithm>
#include <bit>

namespace gpurx::detail {

page_census::page_census(memory_span memory, std::size_t page_size)
    : memory_{memory}, page_shift_{std::countr_zero(page_size)}, noted_(memory.size() >> page_shift_)
{}

std::uint64_t page_census::note(fragment const& piece) noexcept
{
    if (piece.kind != memory_.kind() || piece.size == 0 || piece.address < memory_.address() ||
        piece.address - memory_.address() >= memory_.size())
        return 0;
    auto const begin = piece.address - memory_.address();
    auto const end = std::min<std::uint64_t>(noted_.size(), ((begin + piece.size - 1) >> page_shift_) + 1);
    std::uint64_t count = 0;
    for (auto page = begin >> page_shift_; page < end; ++page) {
        count += noted_[page] ? 0 : 1;
        noted_[page] = true;
    }
    return count;
}

}  // namespace gpurx::detail
