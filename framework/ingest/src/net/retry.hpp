// SPDX-License-Identifier: Apache-2.0
//
// Retries: failures of a URL, decisions about another attempt, counts of failures in a row, and pauses.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <optional>
#include <string_view>

#include <gpurx/error.hpp>

#include "message.hpp"
#include "url.hpp"

namespace gpurx::ingest::detail {

// Another attempt may succeed.
class passing_error : public system_error {
  public:
    passing_error(error_code code, diagnostics const& why, std::optional<std::chrono::seconds> wait = {})
        : system_error{code, why}, retry_after{wait}
    {}

    // The pause that the server requests.
    std::optional<std::chrono::seconds> retry_after;
};

// The server has served the object before. So it does not refuse the object, but an expired signed URL, or expired
// credentials. The original URL may lead to the object again.
class later_refusal : public system_error {
  public:
    using system_error::system_error;
};

// Returns whether another attempt may succeed after this failure, whatever failed.
[[nodiscard]] bool may_pass(system_error const& failure);

// Text that names the URL; it may contain text of the server.
[[nodiscard]] diagnostics words_for(url const& from, std::string_view advice);
[[noreturn]] void fail(error_code code, url const& from, std::string_view advice);

// A failure of one attempt, with the URL. It is rethrown if no other attempt may succeed.
[[nodiscard]] passing_error passing(system_error const& failure, url const& from);

// Throws the server's error, temporary or permanent.
[[noreturn]] void refused(answer const& head, diagnostics const& why);

// Returns the pause before attempt `failures` + 1: 0.1 s, doubled each time, up to 20 s. `spread` from 0 to 1 makes it
// up to a fifth shorter, so that connections that failed together do not return together. It is never shorter than the
// server's request. Pure.
[[nodiscard]] std::chrono::milliseconds pause_after(unsigned failures, double spread,
                                                    std::optional<std::chrono::seconds> retry_after) noexcept;

// Most attempts for a server that has never responded.
inline constexpr unsigned attempts_unanswered = 5;

class retries {
  public:
    using time_point = std::chrono::steady_clock::time_point;

    // There is no attempt after the deadline.
    retries(asio::any_io_executor const& executor, unsigned attempts, time_point deadline = time_point::max())
        : pause_{executor}, attempts_{attempts}, deadline_{deadline}
    {}

    void progress() noexcept { failures_ = 0; }
    // Returns whether another failure would exceed the limit.
    [[nodiscard]] bool is_over() const noexcept { return failures_ + 1 >= attempts_; }
    // Waits before the next attempt. Throws the failure if no attempt is left.
    [[nodiscard]] asio::awaitable<void> async_pause(passing_error failure);

  private:
    asio::steady_timer pause_;
    unsigned attempts_;
    time_point deadline_;
    unsigned failures_ = 0;
};

}  // namespace gpurx::ingest::detail
