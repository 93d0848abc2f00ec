// SPDX-License-Identifier: Apache-2.0
//
// The pages of a session's memory for transport copy, shared by its flows. Pages are numbers: page i has the bytes from
// i * page_size() on. A page without references is free. Several fragments may share a page.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace gpurx::detail {

// Thread safety: all members may be called at the same time.
class page_pool {
  public:
    // Which free pages are taken first.
    enum class order : bool {
        warmest,   // those that were used last: a CPU's cache has them
        in_a_row,  // adjacent ones, because bytes in a row cross to a GPU in one copy
    };

    // Returns the least memory with which `flows` flows make progress. Each needs two of the smallest pages, one being
    // filled and one on loan.
    [[nodiscard]] static std::size_t smallest_memory(unsigned flows) noexcept;
    // Returns a power of two from 4 KiB to 64 KiB: the largest page size with at least sixteen pages for each flow.
    [[nodiscard]] static std::size_t page_size_for(std::size_t bytes, unsigned flows) noexcept;

    // Precondition: bytes >= smallest_memory(flows).
    page_pool(std::size_t bytes, unsigned flows, order taken_by = order::warmest);

    [[nodiscard]] std::size_t page_size() const noexcept { return page_size_; }
    [[nodiscard]] std::size_t page_count() const noexcept { return references_.size(); }
    [[nodiscard]] std::size_t free_count() const noexcept;

    // Takes free pages, one reference each, until `pages` is full or none is left; returns how many. In a row: only
    // adjacent pages, from `first` on if enough of these are free, and at least one if any is.
    [[nodiscard]] std::size_t take(std::span<std::uint32_t> pages, std::size_t first = 0) noexcept;
    // Adds a reference to each page. Precondition: the caller holds one.
    void add_references(std::span<std::uint32_t const> pages) noexcept;
    // Drops a reference of each page. A page without references becomes free, and wakes waiting flows.
    void put(std::span<std::uint32_t const> pages) noexcept;
    // True if the caller's reference is the only one.
    [[nodiscard]] bool is_sole_owner(std::uint32_t page) const noexcept;

    // Writes to the eventfd `event`, once, when a page becomes free. If a page is free now, returns false and does
    // nothing.
    [[nodiscard]] bool notify(int event);
    // Cancels notify(). After the call the pool does not write to `event`.
    void forget(int event) noexcept;

  private:
    struct run {
        std::size_t first;
        std::size_t count;
    };

    // The caller of these three holds the mutex.
    [[nodiscard]] run find_run(std::size_t first, std::size_t wanted) const noexcept;
    [[nodiscard]] std::size_t take_run(std::span<std::uint32_t> pages, std::size_t first) noexcept;
    void make_free(std::uint32_t page) noexcept;

    std::size_t page_size_;
    order order_;
    std::vector<std::atomic<std::uint32_t>> references_;  // by page
    mutable std::mutex mutex_;                            // guards the members below
    std::vector<std::uint32_t> free_;                     // warmest: a stack
    std::vector<bool> is_free_;                           // in a row: by page
    std::size_t free_count_;
    std::vector<int> waiting_;
};

}  // namespace gpurx::detail
