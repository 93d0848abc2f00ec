// SPDX-License-Identifier: Apache-2.0
//
// How long the next one of something has to wait, so that there are no more than so many in a time. As many may come at
// once.
#pragma once

#include <algorithm>
#include <chrono>

namespace gpurx::gpurxd {

class rule_rate {
  public:
    using clock = std::chrono::steady_clock;

    // Precondition: above 0. `used_until`: what used_until() was of one that goes on here.
    explicit rule_rate(unsigned most, clock::duration in = std::chrono::seconds{1},
                       clock::time_point used_until = clock::time_point::min()) noexcept
        : in_{in}, each_{in / most}, used_until_{used_until}
    {}

    // Counts one that is wanted at `now`. Returns how long it has to wait.
    [[nodiscard]] clock::duration next(clock::time_point now) noexcept
    {
        auto const earliest = now - in_;
        used_until_ = std::max(used_until_, earliest) + each_;
        return std::max(used_until_ - now, clock::duration::zero());
    }
    [[nodiscard]] clock::time_point used_until() const noexcept { return used_until_; }

  private:
    clock::duration in_;
    clock::duration each_;
    clock::time_point used_until_;
};

}  // namespace gpurx::gpurxd
