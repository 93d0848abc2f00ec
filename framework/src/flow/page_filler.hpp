// SPDX-License-Identifier: Apache-2.0
//
// Which pages of a session's memory the next bytes of one flow go to, for transport copy: the rest of the page in use,
// so that small receives share one, then fresh pages. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <gpurx/stream.hpp>

#include "loan.hpp"
#include "page_pool.hpp"

namespace gpurx::detail {

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
