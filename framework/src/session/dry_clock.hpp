// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace gpurx::detail {

// How long a pool was dry, as far as looks at it tell: the times between two looks in a row that both found no page
// free, and between which the NIC failed to get one. A full pool alone proves nothing (watchdog.hpp). No I/O.
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
