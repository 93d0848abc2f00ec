// SPDX-License-Identifier: Apache-2.0
//
// Times, and what many samples of one come to.
#pragma once

#include <algorithm>
#include <ctime>
#include <vector>

namespace gpurx::bench {

[[nodiscard]] inline double seconds_of(clockid_t clock) noexcept
{
    timespec now{};
    ::clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Seconds that have gone by, and those that this thread and this process have worked.
struct times {
    double wall = 0;
    double thread = 0;
    double process = 0;

    [[nodiscard]] static times now() noexcept
    {
        return {.wall = seconds_of(CLOCK_MONOTONIC),
                .thread = seconds_of(CLOCK_THREAD_CPUTIME_ID),
                .process = seconds_of(CLOCK_PROCESS_CPUTIME_ID)};
    }
    [[nodiscard]] times since(times const& start) const noexcept
    {
        return {.wall = wall - start.wall, .thread = thread - start.thread, .process = process - start.process};
    }
};

class samples {
  public:
    void add(double value) { values_.insert(std::ranges::upper_bound(values_, value), value); }
    [[nodiscard]] bool empty() const noexcept { return values_.empty(); }
    // Of no samples: 0.
    [[nodiscard]] double at(double share) const noexcept
    {
        auto const last = values_.empty() ? 0 : values_.size() - 1;
        return values_.empty() ? 0 : values_[static_cast<std::size_t>(share * static_cast<double>(last) + 0.5)];
    }
    [[nodiscard]] double median() const noexcept { return at(0.5); }
    [[nodiscard]] double min() const noexcept { return at(0); }
    [[nodiscard]] double max() const noexcept { return at(1); }

  private:
    std::vector<double> values_;  // in order
};

}  // namespace gpurx::bench
