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

}  // namespace gpurx::detail
