// SPDX-License-Identifier: Apache-2.0
//
// How long the next rule has to wait, so that there are no more than so many a second. A second's worth may come at
// once.
#pragma once

#include <algorithm>
#include <chrono>

namespace gpurx::gpurxd {

class rule_rate {
  public:
    using clock = std::chrono::steady_clock;

    // Precondition: above 0.
    explicit rule_rate(unsigned a_second) noexcept
        : each_{std::chrono::duration_cast<clock::duration>(std::chrono::seconds{1}) / a_second}
    {}

    // Counts a rule that is wanted at `now`. Returns how long it has to wait.
    [[nodiscard]] clock::duration next(clock::time_point now) noexcept
    {
        auto const earliest = now - std::chrono::seconds{1};
        used_until_ = std::max(used_until_, earliest) + each_;
        return std::max(used_until_ - now, clock::duration::zero());
    }

  private:
    clock::duration each_;
    clock::time_point used_until_ = clock::time_point::min();
};

}  // namespace gpurx::gpurxd
