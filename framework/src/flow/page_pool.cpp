// SPDX-License-Identifier: Apache-2.0
#include "page_pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <ranges>

namespace gpurx::detail {

namespace {

constexpr std::size_t smallest_page = 4 << 10;
constexpr std::size_t largest_page = 64 << 10;
constexpr std::size_t pages_per_flow = 16;

}  // namespace

std::size_t page_pool::smallest_memory(unsigned flows) noexcept
{
    return std::size_t{flows} * 2 * smallest_page;
}

std::size_t page_pool::page_size_for(std::size_t bytes, unsigned flows) noexcept
{
    return std::clamp(std::bit_floor(bytes / (std::max(flows, 1U) * pages_per_flow)), smallest_page, largest_page);
}

page_pool::page_pool(std::size_t bytes, unsigned flows)
    : page_size_{page_size_for(bytes, flows)}, references_(bytes / page_size_)
{
    assert(bytes >= smallest_memory(flows));
    free_.resize(references_.size());
    for (std::size_t i = 0; i < free_.size(); ++i)
        free_[i] = static_cast<std::uint32_t>(free_.size() - 1 - i);
    waiting_.reserve(flows);
}

std::size_t page_pool::free_count() const noexcept
{
    std::lock_guard const lock{mutex_};
    return free_.size();
}

std::size_t page_pool::take(std::span<std::uint32_t> pages) noexcept
{
    std::lock_guard const lock{mutex_};
    auto const count = std::min(pages.size(), free_.size());
    for (auto& page : pages.first(count)) {
        page = free_.back();
        free_.pop_back();
        references_[page] = 1;
    }
    return count;
}

void page_pool::add_references(std::span<std::uint32_t const> pages) noexcept
{
    std::lock_guard const lock{mutex_};
    for (auto const page : pages) {
        assert(references_[page] > 0);
        ++references_[page];
    }
}

void page_pool::put(std::span<std::uint32_t const> pages) noexcept
{
    if (pages.empty())
        return;
    std::lock_guard const lock{mutex_};
    bool any_free = false;
    // Backwards, so that pages which were taken together are taken in the same order again, adjacent where they were.
    for (auto left = pages.size(); left > 0; --left) {
        auto const page = pages[left - 1];
        assert(references_[page] > 0);
        if (--references_[page] > 0)
            continue;
        free_.push_back(page);  // never beyond its first size
        any_free = true;
    }
    if (!any_free)
        return;
    // Under the mutex, so that forget() can promise that nobody writes any more.
    for (auto const event : waiting_) {
        std::uint64_t const one = 1;
        [[maybe_unused]] auto const written = ::write(event, &one, sizeof one);
    }
    waiting_.clear();
}

bool page_pool::is_sole_owner(std::uint32_t page) const noexcept
{
    std::lock_guard const lock{mutex_};
    return references_[page] == 1;
}

bool page_pool::notify(int event)
{
    std::lock_guard const lock{mutex_};
    if (!free_.empty())
        return false;
    if (std::ranges::find(waiting_, event) == waiting_.end())
        waiting_.push_back(event);
    return true;
}

void page_pool::forget(int event) noexcept
{
    std::lock_guard const lock{mutex_};
    std::erase(waiting_, event);
}

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
