// SPDX-License-Identifier: Apache-2.0
#include "lane.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <chrono>
#include <gpurx/ingest/error.hpp>
#include <string>
#include <utility>

#include "../net/retry.hpp"

namespace gpurx::ingest::detail {

namespace {

// A server that has the next request already begins with its answer soon after the last.
constexpr std::chrono::seconds time_for_next{2};

// `before`: the answer to HEAD. What it says holds for the object that is received.
opened_object opened(first_answer const& found, answer const& head, answer const& before)
{
    auto const same = before.status == 200 && !head.etag.empty() && before.etag == head.etag;
    return {.object = found.object,
            .serves_ranges = found.serves_ranges,
            .crc32c = !head.crc32c && same ? before.crc32c : head.crc32c,
            .crc64nvme = !head.crc64nvme && same ? before.crc64nvme : head.crc64nvme};
}

}  // namespace

asio::awaitable<void> lane::async_connect()
{
    auto const endpoints = co_await at_->from.async_endpoints(executor_);
    on_ = std::make_shared<http_connection>(executor_, at_->from.make_wire(executor_), context_->limits(is_outrun_));
    asked_ = answered_ = 0;
    ++context_->counters.connections;
    try {
        co_await on_->async_connect(endpoints);
    } catch (system_error const& failure) {
        if (!at_->from.proxy())
            throw;
        auto why = failure.why();
        why.advice += fmt::format("{}through the proxy {}", why.advice.empty() ? "" : "; ", at_->from.proxy()->display);
        if (may_pass(failure))
            throw passing_error{failure.code(), why};
        throw system_error{failure.code(), why};
    }
}

// ---- the first request ----

asio::awaitable<opened_object> lane::async_open(std::uint64_t size)
{
    for (;;) {
        if (auto found = co_await attempt(size))
            co_return std::move(*found);
        drop();
    }
}

asio::awaitable<std::optional<opened_object>> lane::attempt(std::uint64_t size)
{
    co_await at_->from.async_locate(executor_);
    co_await async_connect();
    auto const checksum_request = at_->from.ask_for_checksum();
    auto const has_head = !checksum_request.empty();
    if (has_head) {
        ++context_->counters.requests;
        co_await on_->async_send(checksum_request);
    }
    byte_range const asked{0, at_->asks_for_range ? size : 0};
    auto const is_alone = has_head && at_->from.pipelined() == 1;
    if (!is_alone) {
        // Not made in the call: GCC 12 destroys such an argument of a coroutine twice.
        pending_request first{.asked = asked, .answer = {}, .wanted = {}};
        co_await async_ask(std::move(first));
    }
    if (has_head)
        at_->checksums = co_await on_->async_answer();
    if (is_alone || (has_head && !at_->checksums.keep_alive))
        co_return std::nullopt;
    auto const answered = co_await answer_to_first(has_head);
    if (!answered)
        co_return std::nullopt;
    auto const& head = *answered;
    at_->from.learn_commit(head);
    if (is_elsewhere(head) || is_refused_range(head))
        co_return std::nullopt;
    error_code code;
    std::string why;
    auto const found = understand_first(head, asked, code, why);
    if (code == errc::http_status) {
        auto const body = co_await on_->async_beginning(head);
        if (at_->from.can_do_without_checksum(head, body))
            co_return std::nullopt;
        at_->from.refuse(head, body);
    }
    if (code)
        fail(code, at_->from.where(), why);
    learn(head);
    requests.front() = {
        .asked = asked, .answer = found.follows, .wanted = {}, .answered = true, .last = !head.keep_alive};
    co_return opened(found, head, at_->checksums);
}

bool lane::is_elsewhere(answer const& head)
{
    if (!head.is_redirect())
        return false;
    if (at_->from.move_to(head.bucket_region))
        return true;
    // Perhaps its text names the bucket's region.
    if (head.location.empty())
        return false;
    at_->from.redirect(head);
    return true;
}

// Some answer 416 where no byte is left to serve, and some where they serve no ranges: without a range it will tell.
bool lane::is_refused_range(answer const& head)
{
    return head.status == 416 && head.total != 0U && std::exchange(at_->asks_for_range, false);
}

// ---- later ones ----

void lane::rest() noexcept
{
    landing = {};
    kept_ = on_ != nullptr;
    if (kept_)
        on_->rest();
}

void lane::wake()
{
    if (kept_ && !on_->wake())
        disconnect();
}

asio::awaitable<void> lane::async_ask(pending_request what)
{
    what.ahead = !requests.empty();
    if (!what.ahead)
        since_ = std::chrono::steady_clock::now();
    requests.push_back(std::move(what));
    ++asked_;
    ++context_->counters.requests;
    auto text = co_await at_->from.async_get(requests.back().asked);
    co_await on_->async_send(std::move(text));
}

unsigned lane::looks_for_next() const
{
    auto const look = context_->options.timeout / looks_per_timeout;
    return static_cast<unsigned>(std::clamp<std::int64_t>(time_for_next / look, 1, looks_per_timeout));
}

asio::awaitable<answer> lane::answer_to(pending_request const& what)
{
    try {
        co_return co_await on_->async_answer(what.ahead ? looks_for_next() : looks_per_timeout);
    } catch (system_error const& failure) {
        // Some servers drop what comes while they answer.
        if (what.ahead && failure.code() == errc::gave_up)
            at_->from.ask_alone();
        throw;
    }
}

asio::awaitable<std::optional<answer>> lane::answer_to_first(bool is_behind_head)
{
    if (!is_behind_head)
        co_return co_await on_->async_answer();
    try {
        co_return co_await on_->async_answer(looks_for_next());
    } catch (system_error const& failure) {
        // Some servers drop the GET, some end the connection, and some answer a HEAD with a body.
        auto const is_deadline = std::chrono::steady_clock::now() >= context_->deadline;
        auto const is_known = failure.code() == errc::gave_up || failure.code() == errc::bad_response ||
                              failure.code() == asio::error::eof || failure.code() == asio::error::connection_reset;
        if (is_deadline || !is_known)
            throw;
    }
    at_->from.ask_alone();
    co_return std::nullopt;
}

asio::awaitable<void> lane::refuse(answer head)
{
    auto const body = co_await on_->async_beginning(head);
    auto const why = words_for(at_->from.where(), refusal_text(head, body));
    if (head.status == 400 || head.status == 401 || head.status == 403)
        throw later_refusal{make_error_code(errc::http_status), why};
    refused(head, why);
}

asio::awaitable<void> lane::async_read_header(pending_request& what)
{
    auto const head = co_await answer_to(what);
    error_code code;
    std::string why;
    auto const bytes = understand(head, what.asked, at_->opened.object, code, why);
    if (code == errc::http_status)
        co_await refuse(head);
    // The request was dropped, and this is the answer to a later one.
    if (code == errc::wrong_range && what.ahead) {
        at_->from.ask_alone();
        throw passing_error{code, words_for(at_->from.where(), why)};
    }
    if (code)
        fail(code, at_->from.where(), why);
    what.answer = bytes;
    what.answered = true;
    what.last = !head.keep_alive;
    learn(head);
}

double lane::speed_of(std::uint64_t bytes)
{
    auto const now = std::chrono::steady_clock::now();
    std::chrono::duration<double> const took = now - std::exchange(since_, now);
    return static_cast<double>(bytes) / std::max(took.count(), 1e-6);
}

void lane::learn(answer const& head) noexcept
{
    ++answered_;
    kept_ = false;
    if (!head.keep_alive)
        at_->from.per_connection = answered_;
    else if (answered_ >= at_->from.per_connection)
        at_->from.per_connection = answered_ + 1;
}

}  // namespace gpurx::ingest::detail
