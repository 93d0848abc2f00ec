// SPDX-License-Identifier: Apache-2.0
#include "page_pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cassert>

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

page_pool::page_pool(std::size_t bytes, unsigned flows, order taken_by)
    : page_size_{page_size_for(bytes, flows)},
      order_{taken_by},
      references_(bytes / page_size_),
      free_count_{references_.size()}
{
    assert(bytes >= smallest_memory(flows));
    if (order_ == order::in_a_row)
        is_free_.assign(references_.size(), true);
    else
        free_.resize(references_.size());
    for (std::size_t i = 0; i < free_.size(); ++i)
        free_[i] = static_cast<std::uint32_t>(free_.size() - 1 - i);
    waiting_.reserve(flows);
}

std::size_t page_pool::free_count() const noexcept
{
    std::lock_guard const lock{mutex_};
    return free_count_;
}

std::size_t page_pool::take(std::span<std::uint32_t> pages, std::size_t first) noexcept
{
    std::lock_guard const lock{mutex_};
    if (order_ == order::in_a_row)
        return take_run(pages, first);
    auto const count = std::min(pages.size(), free_.size());
    for (auto& page : pages.first(count)) {
        page = free_.back();
        free_.pop_back();
        references_[page] = 1;
    }
    free_count_ -= count;
    return count;
}

std::size_t page_pool::take_run(std::span<std::uint32_t> pages, std::size_t first) noexcept
{
    auto const found = find_run(first, pages.size());
    for (std::size_t i = 0; i < found.count; ++i) {
        pages[i] = static_cast<std::uint32_t>(found.first + i);
        is_free_[pages[i]] = false;
        references_[pages[i]] = 1;
    }
    free_count_ -= found.count;
    return found.count;
}

// Pages behind those used last save a copy, even if they are fewer. Else the first that are enough, or most.
page_pool::run page_pool::find_run(std::size_t first, std::size_t wanted) const noexcept
{
    auto const run_at = [&](std::size_t at) {
        std::size_t count = 0;
        while (count < wanted && at + count < is_free_.size() && is_free_[at + count])
            ++count;
        return run{at, count};
    };
    auto best = run_at(first);
    if (best.count * 2 >= wanted || free_count_ == 0)
        return best;
    for (std::size_t seen = 0; seen < is_free_.size() && best.count < wanted;) {
        auto const next = run_at((first + seen) % is_free_.size());
        if (next.count > best.count)
            best = next;
        seen += next.count + 1;
    }
    return best;
}

void page_pool::make_free(std::uint32_t page) noexcept
{
    ++free_count_;
    if (order_ == order::in_a_row)
        is_free_[page] = true;
    else
        free_.push_back(page);  // never beyond its first size
}

void page_pool::add_references(std::span<std::uint32_t const> pages) noexcept
{
    for (auto const page : pages) {
        [[maybe_unused]] auto const before = references_[page].fetch_add(1, std::memory_order_relaxed);
        assert(before > 0);
    }
}

void page_pool::put(std::span<std::uint32_t const> pages) noexcept
{
    std::unique_lock lock{mutex_, std::defer_lock};
    // Backwards, so that pages which were taken together are taken in the same order again, adjacent where they were.
    for (auto left = pages.size(); left > 0; --left) {
        auto const page = pages[left - 1];
        auto const before = references_[page].fetch_sub(1, std::memory_order_acq_rel);
        assert(before > 0);
        if (before > 1)
            continue;
        if (!lock.owns_lock())
            lock.lock();
        make_free(page);
    }
    if (!lock.owns_lock())
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
    return references_[page].load(std::memory_order_acquire) == 1;
}

bool page_pool::notify(int event)
{
    std::lock_guard const lock{mutex_};
    if (free_count_ > 0)
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

}  // namespace gpurx::detail
