// SPDX-License-Identifier: Apache-2.0
//
// The log of gpurxd: lines on stderr, which systemd's journal gets.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace gpurx::gpurxd {

// Keeps a client that is refused again and again from filling the log.
class log_limit {
  public:
    using clock = std::chrono::steady_clock;

    // `at_once`: lines that may come at once. `each`: the time between two after that.
    explicit log_limit(unsigned at_once = 10, clock::duration each = std::chrono::seconds{1}) noexcept
        : each_{each}, burst_{each * at_once}
    {}

    // Whether a line may be written; and how many were not since the last one that was.
    [[nodiscard]] std::optional<std::uint64_t> next(clock::time_point now) noexcept
    {
        auto const until = std::max(used_until_, now) + each_;
        if (until - now > burst_) {
            ++left_out_;
            return std::nullopt;
        }
        used_until_ = until;
        return std::exchange(left_out_, 0);
    }

  private:
    clock::duration each_;
    clock::duration burst_;
    clock::time_point used_until_ = clock::time_point::min();
    std::uint64_t left_out_ = 0;
};

// Writes a line; what a terminal would obey in it is replaced. Never throws.
void log_line(std::string_view text) noexcept;
// The same, unless there have been too many of late: then the next that is written says how many were not.
void log_line(log_limit& limit, std::string_view text) noexcept;

}  // namespace gpurx::gpurxd
