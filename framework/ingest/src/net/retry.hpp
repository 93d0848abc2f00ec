// SPDX-License-Identifier: Apache-2.0
//
// How often something may fail in a row, and how long to wait between.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <optional>

#include <gpurx/error.hpp>

namespace gpurx::ingest::detail {

// Another attempt may go better.
class passing_error : public system_error {
  public:
    passing_error(error_code code, diagnostics const& why, std::optional<std::chrono::seconds> wait = {})
        : system_error{code, why}, retry_after{wait}
    {}

    // How long the server asks to be left alone.
    std::optional<std::chrono::seconds> retry_after;
};

// The pause before attempt `failures` + 1: 0.1 s, twice as long each time, up to 20 s; `spread` from 0 to 1 makes it up
// to a fifth shorter, so that those that failed together do not come back together. Never shorter than what the server
// asked for. Pure.
[[nodiscard]] std::chrono::milliseconds pause_after(unsigned failures, double spread,
                                                    std::optional<std::chrono::seconds> retry_after) noexcept;

class retries {
  public:
    using time_point = std::chrono::steady_clock::time_point;

    // After the deadline there is no attempt.
    retries(asio::any_io_executor const& executor, unsigned attempts, time_point deadline = time_point::max())
        : pause_{executor}, attempts_{attempts}, deadline_{deadline}
    {}

    void progress() noexcept { failures_ = 0; }
    // One more failure is one too many.
    [[nodiscard]] bool is_over() const noexcept { return failures_ + 1 >= attempts_; }
    // Waits before the next attempt; throws what happened if there is to be none.
    [[nodiscard]] asio::awaitable<void> async_pause(passing_error failure);

  private:
    asio::steady_timer pause_;
    unsigned attempts_;
    time_point deadline_;
    unsigned failures_ = 0;
};

}  // namespace gpurx::ingest::detail
