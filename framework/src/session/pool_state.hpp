// SPDX-License-Identifier: Apache-2.0
//
// The pages of a session's memory: their places, the time without free pages, and whether flows can continue. No I/O.
// Locked up: out-of-order data holds every page, the missing segment finds none, and no page can return. Starved: no
// page is free, and the program holds some. docs/memory-budget.md explains the conditions.
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

// Uses for which a program holds pages. If several apply, the first counts.
enum class page_use : std::uint8_t { on_loan, parked, in_reads };

class page_census {
  public:
    // `page_size` is a power of two.
    page_census(memory_span memory, std::size_t page_size);

    // Notes the pages of the fragment; none if it is in other memory. Returns the number of newly noted pages.
    std::uint64_t note(fragment const& piece) noexcept;
    [[nodiscard]] std::uint64_t pages() const noexcept { return noted_.size(); }

  private:
    memory_span memory_;
    int page_shift_;
    std::vector<bool> noted_;
};

// A flow that holds pages of a session. Safe while it receives and returns pages.
class page_holder {
  public:
    page_holder() = default;
    page_holder(page_holder const&) = delete;
    page_holder& operator=(page_holder const&) = delete;

    // Notes all pages held for this use; returns the number of newly noted pages.
    [[nodiscard]] virtual std::uint64_t note_pages(page_use what, page_census& census) const noexcept = 0;

  protected:
    ~page_holder() = default;
};

// ---- account of all pages ----

// Computes the remaining places from the program's pages (on_loan, parked, in_reads), the rings' demand (ring_demand)
// and the pages that have left the memory provider. The latter were counted a moment earlier or later; every page of
// the program has left the provider.
void divide(pool_stats& account, std::uint64_t in_flight) noexcept;

// Returns text for people (transport devmem): one line, and one for each flow that holds pages.
[[nodiscard]] std::string describe(pool_stats const& account);

// ---- lock-up and starvation ----

struct lock_up_sample {
    std::chrono::steady_clock::time_point at;
    std::uint64_t pages_on_loan = 0;
    std::uint64_t bytes_delivered = 0;  // by all flows, so far
    std::uint64_t bytes_held = 0;       // by TCP, for waiting flows: data behind a hole, not readable
    std::optional<pool_sample> pool;    // empty: not known, or not requested

    // Returns false if the state of the pool does not matter.
    [[nodiscard]] constexpr bool needs_pool() const noexcept { return pages_on_loan > 0 || bytes_held > 0; }
};

// Returns the pages of one large segment. With fewer free pages, a segment may not fit.
[[nodiscard]] std::uint64_t pages_of_a_segment(std::size_t page_size) noexcept;
// Returns whether fewer pages are free, of `pages` in total.
[[nodiscard]] bool is_dry(pool_sample const& sample, std::uint64_t pages, std::size_t page_size) noexcept;

enum class pool_verdict : std::uint8_t { moving, locked_up, starved };

class lock_up_detector {
  public:
    // `limit` > 0. A limit beyond the clock's range means never.
    lock_up_detector(std::chrono::milliseconds limit, std::uint64_t pages, std::size_t page_size) noexcept
        : limit_{std::min<std::chrono::milliseconds>(limit, std::chrono::years{100})},
          pages_{pages},
          page_size_{page_size}
    {}

    // Call it with samples in order of time. The verdict is `moving` until nothing could move for the whole limit.
    // After a lock-up the limit begins again. The verdict of starvation comes once until a flow moves.
    [[nodiscard]] pool_verdict judge(lock_up_sample const& sample) noexcept;
    // No flow waits: forgets earlier samples.
    void reset() noexcept;

  private:
    [[nodiscard]] pool_verdict look_at(lock_up_sample const& sample) const noexcept;
    [[nodiscard]] bool lacks_pages(pool_sample const& then, lock_up_sample const& now) const noexcept;

    std::chrono::nanoseconds limit_;
    std::uint64_t pages_;
    std::size_t page_size_;
    std::optional<lock_up_sample> since_;  // first of consecutive samples in which nothing could move
    bool told_ = false;                    // reported starvation since then
};

// Time in which a pool was dry, from samples: the sum of times between two successive samples that both found no free
// page, if the NIC failed to get a page in between. A full pool alone is no proof (lock_up_detector::lacks_pages).
class dry_clock {
  public:
    using time_point = std::chrono::steady_clock::time_point;

    // Call it in order of time. `failures`: failures of the NIC to get a page, so far.
    void look(time_point now, bool none_free, std::uint64_t failures) noexcept
    {
        if (last_ && none_free && failures > last_->failures)
            total_ += now - last_->at;
        if (none_free)
            last_ = {now, failures};
        else
            last_.reset();
    }
    // Sampling pauses.
    void pause() noexcept { last_.reset(); }
    [[nodiscard]] std::chrono::nanoseconds total() const noexcept { return total_; }

  private:
    struct moment {
        time_point at;
        std::uint64_t failures;
    };
    std::optional<moment> last_;  // last sample, if it found no free page
    std::chrono::nanoseconds total_{0};
};

}  // namespace gpurx::detail
