// SPDX-License-Identifier: Apache-2.0
#include "retry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <gpurx/ingest/error.hpp>
#include <random>

#include "url.hpp"

namespace gpurx::ingest::detail {

namespace {

using namespace std::chrono_literals;

constexpr auto first_pause = 100ms;
constexpr std::chrono::milliseconds longest_pause = 20s;
// A server that asks for more than this has refused.
constexpr std::chrono::seconds longest_wait = 5min;

[[noreturn]] void give_up(passing_error const& failure, std::string const& reason)
{
    auto why = failure.why();
    auto code = failure.code();
    if (code == asio::error::eof) {
        code = errc::gave_up;
        why.advice = "the connection ended before the answer";
    }
    why.advice += (why.advice.empty() ? "" : "; ") + reason;
    throw system_error{code, why};
}

double spread()
{
    thread_local std::minstd_rand source{std::random_device{}()};
    return std::uniform_real_distribution{}(source);
}

bool is_passing(error_code code)
{
    if (code.category() == boost::system::system_category())
        return code != asio::error::operation_aborted && code != asio::error::access_denied;
    return code == asio::error::eof || code == asio::error::host_not_found_try_again || code == errc::gave_up ||
           code == gpurx::errc::memory_locked_up || code == gpurx::errc::too_many_flows;
}

}  // namespace

bool may_pass(system_error const& failure)
{
    return dynamic_cast<passing_error const*>(&failure) != nullptr || is_passing(failure.code());
}

diagnostics words_for(url const& from, std::string_view advice)
{
    return {.operation = "fetch", .object = from.display, .kernel_message = {}, .advice = printable(advice, 1000)};
}

void fail(error_code code, url const& from, std::string_view advice)
{
    throw system_error{code, words_for(from, advice)};
}

passing_error passing(system_error const& failure, url const& from)
{
    auto why = failure.why();
    if (why.object != from.display) {
        if (!why.object.empty())
            why.advice = printable(
                fmt::format("{} {} failed{}{}", why.operation, why.object, why.advice.empty() ? "" : "; ", why.advice),
                2000);
        why.operation = "fetch";
        why.object = from.display;
    }
    auto const* const refusal = dynamic_cast<passing_error const*>(&failure);
    if (!may_pass(failure))
        throw system_error{failure.code(), why};
    return {failure.code(), why, refusal != nullptr ? refusal->retry_after : std::nullopt};
}

void refused(answer const& head, diagnostics const& why)
{
    if (!head.is_temporary())
        throw system_error{errc::http_status, why};
    throw passing_error{errc::http_status, why, head.retry_after};
}

std::chrono::milliseconds pause_after(unsigned failures, double spread,
                                      std::optional<std::chrono::seconds> retry_after) noexcept
{
    auto const doubled =
        std::min<std::chrono::milliseconds>(first_pause * (1U << std::min(failures - 1, 10U)), longest_pause);
    auto const pause = std::chrono::duration_cast<std::chrono::milliseconds>(doubled * (1 - spread / 5));
    return std::max<std::chrono::milliseconds>(pause, retry_after.value_or(0s));
}

asio::awaitable<void> retries::async_pause(passing_error failure)
{
    if (++failures_ >= attempts_)
        give_up(failure, fmt::format("{} attempts", failures_));
    if (failure.retry_after > longest_wait)
        give_up(failure, fmt::format("the server requests a retry after {} s", failure.retry_after->count()));
    auto const pause = pause_after(failures_, spread(), failure.retry_after);
    if (std::chrono::steady_clock::now() + pause >= deadline_)
        give_up(failure, fmt::format("{} attempts, and the deadline comes before the next", failures_));
    pause_.expires_after(pause);
    co_await pause_.async_wait(asio::use_awaitable);
}

}  // namespace gpurx::ingest::detail
