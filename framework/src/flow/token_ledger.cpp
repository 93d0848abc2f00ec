// SPDX-License-Identifier: Apache-2.0
#include "token_ledger.hpp"

#include <algorithm>

namespace gpurx::detail {

token_range token_ledger::add(token_range range) noexcept
{
    auto const count =
        static_cast<std::uint32_t>(std::min<std::size_t>(range.count, uapi::max_dontneed_pages - batch_.pages));
    if (count == 0)
        return range;
    auto* const last = batch_.entries == 0 ? nullptr : &batch_.tokens[batch_.entries - 1];
    if (last != nullptr && goes_on(last->token_start, last->token_count, range.first))
        last->token_count += count;
    else if (batch_.entries < batch_.tokens.size())
        batch_.tokens[batch_.entries++] = {range.first, count};
    else
        return range;
    batch_.pages += count;
    return {range.first + count, range.count - count};
}

void token_ledger::take(token_batch& into) noexcept
{
    std::ranges::copy(batch_.used(), into.tokens.begin());
    into.entries = batch_.entries;
    into.pages = batch_.pages;
    batch_.entries = 0;
    batch_.pages = 0;
}

}  // namespace gpurx::detail
