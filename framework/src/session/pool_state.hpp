// SPDX-License-Identifier: Apache-2.0
//
// The pages of a session's memory: where they are, how long none was free, and whether flows can go on. No I/O.
// Locked up: out-of-order data holds every page, the missing segment finds none, and nobody can give one back.
// Starved: no page is free, and the program holds some. docs/memory-budget.md explains the conditions.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gpurx/rx_buffer.hpp>
#include <gpurx/stats.hpp>
#include <gpurx/views.hpp>

#include "lease/session_nic.hpp"

namespace gpurx::detail {

// ---- pages that the program holds: each counts once, however many loans have a part of it ----

// A program holds pages for these uses. Of several that apply, the first counts.
enum class page_use : std::uint8_t { on_loan, parked, in_reads };

class page_census {
  public:
    // `page_size` is a power of two.
    page_census(memory_span memory, std::size_t page_size);

    // Notes the pages that the fragment lies in; none if it lies elsewhere. Returns how many were not noted yet.
    std::uint64_t note(fragment const& piece) noexcept;
    [[nodiscard]] std::uint64_t pages() const noexcept { return noted_.size(); }

  private:
    memory_span memory_;
    int page_shift_;
    std::vector<bool> noted_;
};

// A flow, which holds pages of a session. Safe while it receives and gives back.
class page_holder {
  public:
    page_holder() = default;
    page_holder(page_holder const&) = delete;
    page_holder& operator=(page_holder const&) = delete;

    // Notes all pages held for that; returns how many were not noted yet.
    [[nodiscard]] virtual std::uint64_t note_pages(page_use what, page_census& census) const noexcept = 0;

  protected:
    ~page_holder() = default;
};

// ---- account of all pages ----

// Makes the rest of the parts of what the program holds (on_loan, parked, in_reads), what the rings want (ring_demand)
// and what has left the memory provider, which was counted a moment before or after: a page that the program holds has
// left it.
void divide(pool_stats& account, std::uint64_t in_flight) noexcept;

// For people, transport devmem: a line, and one for each flow that holds pages.
[[nodiscard]] std::string describe(pool_stats const& account);

// ---- lock-up and starvation ----

struct lock_up_sample {
    std::chrono::steady_clock::time_point at;
    std::uint64_t pages_on_loan = 0;
    std::uint64_t bytes_delivered = 0;  // by all flows, so far
    std::uint64_t bytes_held = 0;       // by TCP, for flows that wait and so can read none of it: data behind a hole
    std::optional<pool_sample> pool;    // empty: not known, or not asked for

    // False: the state of the pool cannot matter.
    [[nodiscard]] constexpr bool needs_pool() const noexcept { return pages_on_loan > 0 || bytes_held > 0; }
};

// The pages of one large segment: with fewer than that free, a segment may still not fit.
[[nodiscard]] std::uint64_t pages_of_a_segment(std::size_t page_size) noexcept;
// Whether that is so, of `pages` in all.
[[nodiscard]] bool is_dry(pool_sample const& sample, std::uint64_t pages, std::size_t page_size) noexcept;

enum class pool_verdict : std::uint8_t { moving, locked_up, starved };

class lock_up_detector {
  public:
    // `limit` > 0; what a clock cannot tell from for ever is for ever.
    lock_up_detector(std::chrono::milliseconds limit, std::uint64_t pages, std::size_t page_size) noexcept
        : limit_{std::min<std::chrono::milliseconds>(limit, std::chrono::years{100})},
          pages_{pages},
          page_size_{page_size}
    {}

    // Samples in order of time. Another verdict than moving comes once nothing could move for the whole limit: a
    // lock-up then begins anew, that flows starve is said once until something moves.
    [[nodiscard]] pool_verdict judge(lock_up_sample const& sample) noexcept;
    // Nothing waits: what was seen so far is void.
    void reset() noexcept;

  private:
    [[nodiscard]] pool_verdict look_at(lock_up_sample const& sample) const noexcept;
    [[nodiscard]] bool lacks_pages(pool_sample const& then, lock_up_sample const& now) const noexcept;

    std::chrono::nanoseconds limit_;
    std::uint64_t pages_;
    std::size_t page_size_;
    std::optional<lock_up_sample> since_;  // the first of an unbroken row of samples in which nothing could move
    bool told_ = false;                    // that flows starve, in this row
};

// How long a pool was dry, as far as samples tell: the times between two samples in a row that both found no page free,
// and between which the NIC failed to get one. A full pool alone proves nothing (lock_up_detector::lacks_pages).
class dry_clock {
  public:
    using time_point = std::chrono::steady_clock::time_point;

    // In order of time. `failures` of the NIC to get a page, so far.
    void look(time_point now, bool none_free, std::uint64_t failures) noexcept
    {
        if (last_ && none_free && failures > last_->failures)
            total_ += now - last_->at;
        if (none_free)
            last_ = {now, failures};
        else
            last_.reset();
    }
    // Nobody looks for a while.
    void pause() noexcept { last_.reset(); }
    [[nodiscard]] std::chrono::nanoseconds total() const noexcept { return total_; }

  private:
    struct moment {
        time_point at;
        std::uint64_t failures;
    };
    std::optional<moment> last_;  // that found none free
    std::chrono::nanoseconds total_{0};
};

}  // namespace gpurx::detail
