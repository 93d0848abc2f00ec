// SPDX-License-Identifier: Apache-2.0
//
// How often something may fail in a row, and how long to wait between.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include <gpurx/error.hpp>

namespace gpurx::ingest::detail {

// Another attempt may go better.
class passing_error : public system_error {
  public:
    using system_error::system_error;
};

class patience {
  public:
    patience(asio::any_io_executor const& executor, unsigned attempts) : pause_{executor}, attempts_{attempts} {}

    void progress() noexcept { failures_ = 0; }
    // One more failure is one too many.
    [[nodiscard]] bool is_over() const noexcept { return failures_ + 1 >= attempts_; }
    // Waits before the next attempt; throws what happened if there is to be none.
    [[nodiscard]] asio::awaitable<void> async_pause(passing_error failure);

  private:
    asio::steady_timer pause_;
    unsigned attempts_;
    unsigned failures_ = 0;
};

}  // namespace gpurx::ingest::detail
