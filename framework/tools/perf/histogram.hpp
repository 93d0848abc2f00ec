// SPDX-License-Identifier: Apache-2.0
//
// Durations, in buckets whose width is a 64th of their value: percentiles are at most 1.6 % too large, from a
// nanosecond to 584 years, in 30 KiB however many there are. (As HdrHistogram has it, of which Debian has no C or C++.)
// Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace gpurx::perf {

class histogram {
  public:
    histogram();

    void add(std::chrono::nanoseconds duration) noexcept;
    void add(histogram const& other) noexcept;

    [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
    // So many of a hundred were no longer: the end of their bucket, and the largest itself for 100. 0 if there is none.
    [[nodiscard]] std::chrono::nanoseconds percentile(double percent) const noexcept;

  private:
    std::vector<std::uint64_t> buckets_;
    std::uint64_t count_ = 0;
    std::uint64_t largest_ = 0;
};

}  // namespace gpurx::perf
