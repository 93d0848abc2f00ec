// SPDX-License-Identifier: Apache-2.0
//
// Retries: failures of a URL, whether another attempt may succeed, how many there are in a row, the pauses between.
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

// Another attempt may go better.
class passing_error : public system_error {
  public:
    passing_error(error_code code, diagnostics const& why, std::optional<std::chrono::seconds> wait = {})
        : system_error{code, why}, retry_after{wait}
    {}

    // How long the server asks to be left alone.
    std::optional<std::chrono::seconds> retry_after;
};

// It has served the object before, so that not the object is refused, but the URL that was signed for a while, or
// credentials that have ended. From where it was found first it may be had once more.
class later_refusal : public system_error {
  public:
    using system_error::system_error;
};

// In words that name the URL; what the server said may be in them.
[[nodiscard]] diagnostics words_for(url const& from, std::string_view advice);
[[noreturn]] void fail(error_code code, url const& from, std::string_view advice);

// A failure of one attempt, with the URL; thrown on if no other attempt could go better.
[[nodiscard]] passing_error passing(system_error const& failure, url const& from);

// Throws what a server says for the moment, or for good.
[[noreturn]] void refused(answer const& head, diagnostics const& why);

// The pause before attempt `failures` + 1: 0.1 s, twice as long each time, up to 20 s; `spread` from 0 to 1 makes it up
// to a fifth shorter, so that those that failed together do not come back together. Never shorter than what the server
// asked for. Pure.
[[nodiscard]] std::chrono::milliseconds pause_after(unsigned failures, double spread,
                                                    std::optional<std::chrono::seconds> retry_after) noexcept;

// A server that has never answered gets no more attempts than this.
inline constexpr unsigned attempts_unanswered = 5;

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
