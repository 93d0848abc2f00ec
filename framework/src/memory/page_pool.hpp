// SPDX-License-Identifier: Apache-2.0
//
// The pages of a session's memory for transport copy, shared by its flows. Pages are numbers: page i is the bytes from
// i * page_size() of the memory. A page is free when nobody holds a reference to it; several fragments may share one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace gpurx::detail {

// Thread safety: all members may be called at the same time.
class page_pool {
  public:
    // The least memory that lets `flows` flows make progress: two of the smallest pages each, one being filled
    // and one on loan.
    [[nodiscard]] static std::size_t smallest_memory(unsigned flows) noexcept;
    // 4 KiB to 64 KiB, a power of two: the largest that leaves each flow sixteen pages.
    [[nodiscard]] static std::size_t page_size_for(std::size_t bytes, unsigned flows) noexcept;

    // Precondition: bytes >= smallest_memory(flows).
    page_pool(std::size_t bytes, unsigned flows);

    [[nodiscard]] std::size_t page_size() const noexcept { return page_size_; }
    [[nodiscard]] std::size_t page_count() const noexcept { return references_.size(); }
    [[nodiscard]] std::size_t free_count() const noexcept;

    // Takes free pages, one reference each, until `pages` is full or none is left; returns how many.
    [[nodiscard]] std::size_t take(std::span<std::uint32_t> pages) noexcept;
    // One more reference each. Precondition: the caller holds one.
    void add_references(std::span<std::uint32_t const> pages) noexcept;
    // One reference fewer each; a page without any is free, and who waits for pages is woken.
    void put(std::span<std::uint32_t const> pages) noexcept;
    // True if the caller's reference is the only one.
    [[nodiscard]] bool is_sole_owner(std::uint32_t page) const noexcept;

    // Writes to the eventfd `event`, once, when a page becomes free. False, and nothing noted: there is a free one now.
    [[nodiscard]] bool notify(int event);
    // Takes back notify(). After it returns, nothing is written to `event`.
    void forget(int event) noexcept;

  private:
    std::size_t page_size_;
    mutable std::mutex mutex_;               // guards what follows
    std::vector<std::uint32_t> references_;  // by page
    std::vector<std::uint32_t> free_;        // a stack: the page used last is the warmest
    std::vector<int> waiting_;
};

}  // namespace gpurx::detail
