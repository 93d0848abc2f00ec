// SPDX-License-Identifier: Apache-2.0
//
// The live counters behind gpurx::stats, one set per flow. The flow's threads write them; any thread reads them.
#pragma once

#include <atomic>
#include <cstdint>

#include <gpurx/stats.hpp>

namespace gpurx::detail {

// A counter that one thread at a time writes, so that add() needs no locked instruction.
class step_counter {
  public:
    void add(std::uint64_t count) noexcept { value_.store(value() + count, std::memory_order_relaxed); }
    void raise_to(std::uint64_t level) noexcept
    {
        if (level > value())
            value_.store(level, std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

  private:
    std::atomic<std::uint64_t> value_{0};
};

// A counter that any thread writes.
class shared_counter {
  public:
    // Returns the value afterwards.
    std::uint64_t add(std::uint64_t count) noexcept
    {
        return value_.fetch_add(count, std::memory_order_relaxed) + count;
    }
    void subtract(std::uint64_t count) noexcept { value_.fetch_sub(count, std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

  private:
    std::atomic<std::uint64_t> value_{0};
};

struct flow_counters {
    // Written by the receiving side.
    step_counter device_bytes;
    step_counter resteered_bytes;
    step_counter linear_bytes;
    step_counter host_bytes;
    step_counter fragments;
    step_counter tokens_high_water;
    step_counter xarray_tokens;
    step_counter receive_calls;
    step_counter waits;
    step_counter loan_waits;
    // Written by every thread that returns a loan too, or by the watchdog.
    shared_counter tokens_out;
    shared_counter release_calls;
    shared_counter release_shortfalls;
    shared_counter release_failures;
    shared_counter starved;
    shared_counter host_memory;

    [[nodiscard]] stats snapshot() const noexcept;
};

// Returns the sums, and the larger of the two high-water marks.
[[nodiscard]] stats operator+(stats const& a, stats const& b) noexcept;

}  // namespace gpurx::detail
