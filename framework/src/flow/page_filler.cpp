// SPDX-License-Identifier: Apache-2.0
#include "page_filler.hpp"

#include <algorithm>

namespace gpurx::detail {

std::size_t page_filler::offer::size() const noexcept
{
    std::size_t sum = 0;
    for (auto const& each : used())
        sum += each.size;
    return sum;
}

page_filler::~page_filler()
{
    if (filling_)
        pool_.put({&page_, 1});
}

void page_filler::prepare(std::size_t limit, offer& what) noexcept
{
    limit = std::min(limit, most_bytes);
    auto const page_size = pool_.page_size();
    what.count = 0;
    auto const add = [&](std::uint32_t page, std::size_t from) {
        auto const size = std::min(page_size - from, limit);
        what.pages[what.count] = page;
        what.parts[what.count++] = {.address = address_of(page) + from, .size = size};
        limit -= size;
    };
    if (filling_) {
        if (filled_ > 0 && pool_.is_sole_owner(page_))
            filled_ = 0;
        add(page_, filled_);
    }
    std::array<std::uint32_t, most_parts> fresh;
    auto const wanted = std::min((limit + page_size - 1) / page_size, most_parts - what.count);
    for (auto const page : std::span{fresh}.first(pool_.take(std::span{fresh}.first(wanted))))
        add(page, 0);
}

void page_filler::make_room(loan& into)
{
    into.fragments.reserve(most_parts);
    into.pages.reserve(most_parts);
}

void page_filler::settle(offer const& what, std::size_t received, loan& into) noexcept
{
    std::size_t used = 0;
    for (; received > 0; ++used) {
        auto const [address, room] = what.parts[used];
        auto const size = std::min(room, received);
        into.append({address, size, memory_.kind()});
        into.pages.push_back(what.pages[used]);
        received -= size;
        // A page that is full now passes from the flow to the loan; any other has both as its holders.
        page_ = what.pages[used];
        filled_ = address - address_of(page_) + size;
        filling_ = filled_ < pool_.page_size();
        if (filling_)
            pool_.add_references({&page_, 1});
    }
    // The page in use stays where it is if nothing was received.
    if (used == 0 && filling_)
        used = 1;
    pool_.put(std::span{what.pages}.subspan(used, what.count - used));
}

}  // namespace gpurx::detail
