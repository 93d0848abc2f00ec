// SPDX-License-Identifier: Apache-2.0
//
// Whether a session's memory is locked up: out-of-order data holds every page, so that the missing segment has no page
// to land in. Pure: samples in, a decision out. Why these conditions: docs/memory-budget.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "session_nic.hpp"

namespace gpurx::detail {

struct lock_up_sample {
    std::chrono::steady_clock::time_point at;
    std::uint64_t pages_on_loan = 0;
    std::uint64_t bytes_delivered = 0;  // by all flows, so far
    std::uint64_t bytes_held = 0;       // by TCP, for flows that wait and so can read none of it: data behind a hole
    std::optional<pool_sample> pool;    // empty: not known, or not asked for

    // False: the state of the pool cannot matter.
    [[nodiscard]] constexpr bool needs_pool() const noexcept { return pages_on_loan == 0 && bytes_held > 0; }
};

// The pages of one large segment: with fewer than that free, a segment may still not fit.
[[nodiscard]] std::uint64_t pages_of_a_segment(std::size_t page_size) noexcept;

class lock_up_detector {
  public:
    // `limit` > 0. `slack`: so many free pages count as none.
    lock_up_detector(std::chrono::nanoseconds limit, std::uint64_t pages, std::uint64_t slack) noexcept
        : limit_{limit}, pages_{pages}, slack_{slack}
    {}

    // Samples in order of time. True once nothing could move for the whole limit, then begins anew.
    [[nodiscard]] bool locked_up(lock_up_sample const& sample) noexcept;
    // Nothing waits: what was seen so far is void.
    void reset() noexcept { since_.reset(); }

  private:
    [[nodiscard]] bool stuck(lock_up_sample const& sample) const noexcept;

    std::chrono::nanoseconds limit_;
    std::uint64_t pages_;
    std::uint64_t slack_;
    std::optional<lock_up_sample> since_;  // the first of an unbroken row of samples in which nothing could move
};

}  // namespace gpurx::detail
