// SPDX-License-Identifier: Apache-2.0
//
// A measure for what a watchdog does not do: another one, of the same limit, that always has something to look at.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "eventually.hpp"
#include "session/watchdog.hpp"

namespace gpurx::test {

class awake_watchdog final : detail::watchdog_subject {
  public:
    explicit awake_watchdog(std::chrono::milliseconds limit) : dog_{*this, limit, {limit, 10, 4096}} {}

    // So often from now on. False: it has not within a minute.
    [[nodiscard]] bool looks(int times)
    {
        return eventually([this, until = looks_ + times] { return looks_ >= until; });
    }

  private:
    // All that arrives is delivered.
    std::optional<detail::lock_up_sample> look() noexcept override
    {
        detail::lock_up_sample sample;
        sample.at = std::chrono::steady_clock::now();
        sample.bytes_delivered = static_cast<std::uint64_t>(++looks_);
        return sample;
    }
    void end_a_flow() noexcept override {}
    void tell_starved() noexcept override {}

    std::atomic<int> looks_{0};
    detail::watchdog dog_;
};

}  // namespace gpurx::test
