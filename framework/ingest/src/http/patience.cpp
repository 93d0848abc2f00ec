// SPDX-License-Identifier: Apache-2.0
#include "patience.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <gpurx/ingest/error.hpp>

namespace gpurx::ingest::detail {

namespace {

using namespace std::chrono_literals;

constexpr auto first_pause = 100ms;
constexpr std::chrono::milliseconds longest_pause = 2s;

[[noreturn]] void give_up(passing_error const& failure, unsigned failures)
{
    auto why = failure.why();
    auto code = failure.code();
    if (code == asio::error::eof) {
        code = errc::gave_up;
        why.advice = "the connection ends before the answer does";
    }
    why.advice += fmt::format("{}{} attempts", why.advice.empty() ? "" : "; ", failures);
    throw system_error{code, why};
}

}  // namespace

asio::awaitable<void> patience::async_pause(passing_error failure)
{
    if (++failures_ >= attempts_)
        give_up(failure, failures_);
    pause_.expires_after(
        std::min<std::chrono::milliseconds>(first_pause * (1U << std::min(failures_ - 1, 5U)), longest_pause));
    co_await pause_.async_wait(asio::use_awaitable);
}

}  // namespace gpurx::ingest::detail
