// SPDX-License-Identifier: Apache-2.0
//
// The live counters behind gpurx::stats, one set per flow: written by the flow's threads, read by anybody.
#pragma once

#include <atomic>
#include <cstdint>

#include <gpurx/stats.hpp>

namespace gpurx::detail {

struct flow_counters {
    std::atomic<std::uint64_t> device_bytes{0};
    std::atomic<std::uint64_t> resteered_bytes{0};
    std::atomic<std::uint64_t> linear_bytes{0};
    std::atomic<std::uint64_t> host_bytes{0};
    std::atomic<std::uint64_t> fragments{0};
    std::atomic<std::uint64_t> tokens_out{0};
    std::atomic<std::uint64_t> tokens_high_water{0};
    std::atomic<std::uint64_t> receive_calls{0};
    std::atomic<std::uint64_t> release_calls{0};
    std::atomic<std::uint64_t> waits{0};
    std::atomic<std::uint64_t> loan_waits{0};
    std::atomic<std::uint64_t> release_shortfalls{0};
    std::atomic<std::uint64_t> release_failures{0};

    [[nodiscard]] stats snapshot() const noexcept;
};

// Sums, and the larger of the two high-water marks.
[[nodiscard]] stats operator+(stats const& a, stats const& b) noexcept;

}  // namespace gpurx::detail
