// SPDX-License-Identifier: Apache-2.0
//
// The pages of a session's memory for transport copy, shared by its flows. Pages are numbers: page i is the bytes from
// i * page_size() of the memory. A page is free when nobody holds a reference to it; several fragments may share one.
//
// Which of them the next bytes of one flow go to is page_filler's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include <gpurx/views.hpp>

#include "loan.hpp"

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

// Which pages the next bytes of one flow go to: the rest of the page in use, so that small receives share one, then
// fresh pages. One thread at a time.
class page_filler {
  public:
    // Offered to one receive, unless the limit is lower or pages are short.
    static constexpr std::size_t most_bytes = 512 << 10;
    // At the smallest page size, and one for the rest of the page in use.
    static constexpr std::size_t most_parts = most_bytes / 4096 + 1;

    // A part of a page; its address is one of the session's memory.
    struct part {
        std::uintptr_t address;
        std::size_t size;
    };
    struct offer {
        std::array<part, most_parts> parts;           // not initialized: only `count` mean anything
        std::array<std::uint32_t, most_parts> pages;  // that the parts lie in
        std::size_t count = 0;

        [[nodiscard]] std::span<part const> used() const noexcept { return std::span{parts}.first(count); }
        [[nodiscard]] std::size_t size() const noexcept;
    };

    page_filler(page_pool& pool, device_span memory) noexcept : pool_{pool}, memory_{memory} {}
    page_filler(page_filler const&) = delete;
    page_filler& operator=(page_filler const&) = delete;
    ~page_filler();

    // Room for at most `limit` bytes; none if no page is free.
    void prepare(std::size_t limit, offer& what) noexcept;
    // Before the bytes have left the socket: nothing may fail afterwards.
    static void make_room(loan& into);
    // Describes the first `received` bytes of what was offered in `into`, and gives back the rest.
    void settle(offer const& what, std::size_t received, loan& into) noexcept;

  private:
    [[nodiscard]] std::uintptr_t address_of(std::uint32_t page) const noexcept
    {
        return memory_.address() + page * pool_.page_size();
    }

    page_pool& pool_;
    device_span memory_;
    // The page that is partly filled; the flow holds a reference of its own to it.
    bool filling_ = false;
    std::uint32_t page_ = 0;
    std::size_t filled_ = 0;  // less than a page
};

}  // namespace gpurx::detail
