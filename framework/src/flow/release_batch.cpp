// SPDX-License-Identifier: Apache-2.0
#include "release_batch.hpp"

#include <algorithm>

namespace gpurx::detail {

token_range release_batch::add(token_range range) noexcept
{
    auto const count =
        static_cast<std::uint32_t>(std::min<std::size_t>(range.count, uapi::max_dontneed_pages - batch_.pages));
    if (count == 0)
        return range;
    if (!join_last({range.first, count})) {
        if (batch_.entries == batch_.tokens.size())
            return range;
        batch_.tokens[batch_.entries++] = {range.first, count};
    }
    batch_.pages += count;
    return {range.first + count, range.count - count};
}

bool release_batch::join_last(token_range range) noexcept
{
    if (batch_.entries == 0)
        return false;
    auto& last = batch_.tokens[batch_.entries - 1];
    token_range joined{last.token_start, last.token_count};
    if (!joined.join(range))
        return false;
    last = {joined.first, joined.count};
    return true;
}

void release_batch::take(token_batch& into) noexcept
{
    std::ranges::copy(batch_.used(), into.tokens.begin());
    into.entries = batch_.entries;
    into.pages = batch_.pages;
    batch_.entries = 0;
    batch_.pages = 0;
}

}  // namespace gpurx::detail
