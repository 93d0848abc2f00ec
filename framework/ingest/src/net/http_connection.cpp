// SPDX-License-Identifier: Apache-2.0
#include "http_connection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/read_size.hpp>
#include <boost/beast/http/error.hpp>
#include <gpurx/gather.hpp>
#include <gpurx/ingest/error.hpp>
#include <span>

#include "answer_parser.hpp"

namespace gpurx::ingest::detail {

namespace {

namespace http = boost::beast::http;

// Of a body that is shown.
constexpr std::size_t beginning_size = 1000;

[[noreturn]] void fail(error_code code, std::string advice)
{
    throw system_error{code, {.operation = {}, .object = {}, .kernel_message = {}, .advice = std::move(advice)}};
}

std::uint64_t bytes_in(std::chrono::milliseconds time, std::uint64_t speed) noexcept
{
    return speed * static_cast<std::uint64_t>(time.count()) / 1000;
}

}  // namespace

http_connection::http_connection(asio::any_io_executor const& executor, std::unique_ptr<wire> below,
                                 connection_limits const& limits, cuda_stream_ref stream)
    : wire_{std::move(below)},
      stream_{stream},
      limits_{limits},
      slowness_{bytes_in(limits.timeout, limits.min_speed)},
      next_look_{executor}
{}

asio::awaitable<void> http_connection::async_connect(std::vector<asio::ip::tcp::endpoint> const& to)
{
    slowness_.wait_for(slowness::waiting_for::header);
    watch();
    check(co_await wire_->async_connect(to));
}

asio::awaitable<void> http_connection::async_send(std::string request)
{
    slowness_.wait_for(slowness::waiting_for::header);
    auto const [code, sent] = co_await wire_->async_write(asio::buffer(request));
    check(code);
}

asio::awaitable<answer> http_connection::async_answer(unsigned looks)
{
    slowness_.wait_for(slowness::waiting_for::header, looks);
    auto found = co_await read_header();
    while (found.status < 200)
        found = co_await read_header();
    slowness_.wait_for(slowness::waiting_for::nothing);
    co_return found;
}

asio::awaitable<answer> http_connection::read_header()
{
    answer_parser parser;
    error_code code;
    while (!parser.is_header_done() && (!code || code == http::error::need_more)) {
        if (early_.size() == 0 || code == http::error::need_more)
            code = co_await read_early();
        if (code)
            break;
        early_.consume(parser.put(early_.cdata(), code));
    }
    co_return taken_from(parser, code);
}

// Little at first: what comes along of a body is copied twice.
asio::awaitable<error_code> http_connection::read_early()
{
    auto const room = boost::beast::read_size(early_, header_limit);
    if (room == 0)
        co_return http::error::buffer_overflow;
    auto const [code, size] = co_await wire_->async_read_some(early_.prepare(room));
    early_.commit(size);
    co_return code;
}

asio::awaitable<http_connection::transferred> http_connection::async_body(memory_span to)
{
    error_code code;
    auto const placed = place_early(to, code);
    if (code || placed == to.size())
        co_return transferred{code, placed};
    slowness_.wait_for(slowness::waiting_for::body);
    auto const [failed, read] = co_await wire_->async_read(to.subspan(placed, to.size() - placed), stream_);
    slowness_.wait_for(slowness::waiting_for::nothing);
    co_return transferred{failed, placed + read};
}

asio::awaitable<http_connection::transferred> http_connection::async_body(host_span to)
{
    return async_body(destination{to}.where());
}

asio::awaitable<void> http_connection::async_skip(std::uint64_t bytes)
{
    auto const early = static_cast<std::size_t>(std::min<std::uint64_t>(early_.size(), bytes));
    early_.consume(early);
    slowness_.wait_for(slowness::waiting_for::body);
    auto const [code, read] = co_await wire_->async_skip(bytes - early);
    slowness_.wait_for(slowness::waiting_for::nothing);
    check(code);
}

asio::awaitable<std::string> http_connection::async_excerpt(std::size_t at_most)
{
    std::string text(std::min(early_.size(), at_most), '\0');
    early_.consume(asio::buffer_copy(asio::buffer(text), early_.data()));
    if (!text.empty())
        co_return text;
    text.resize(at_most);
    slowness_.wait_for(slowness::waiting_for::body);
    auto const [code, size] = co_await wire_->async_read_some(asio::buffer(text));
    check(code);
    text.resize(size);
    co_return text;
}

asio::awaitable<std::string> http_connection::async_beginning(answer of)
{
    std::string text;
    if (of.chunked) {
        // The size of the first chunk stands on a line of its own.
        text = co_await async_excerpt(beginning_size);
        text.erase(0, text.find('\n') + 1);
    } else if (auto const size = std::min<std::uint64_t>(of.length.value_or(0), beginning_size); size > 0) {
        text.resize(size);
        auto const [code, arrived] = co_await async_body(host_span{std::span{text}});
        text.resize(arrived);
    }
    co_return text;
}

// Looks now and then: a timer set anew for each packet would cost more than it tells.
void http_connection::watch()
{
    next_look_.expires_at(std::min(std::chrono::steady_clock::now() + limits_.timeout / looks_per_timeout,
                                   std::max(limits_.deadline, std::chrono::steady_clock::now())));
    next_look_.async_wait([weak = weak_from_this()](error_code code) {
        auto const self = weak.lock();
        if (code || self == nullptr || self->rests_)
            return;
        self->too_slow_ = self->look();
        if (self->too_slow_.empty())
            return self->watch();
        self->wire_->close();
    });
}

void http_connection::rest() noexcept
{
    rests_ = true;
    next_look_.cancel();
}

bool http_connection::wake()
{
    if (early_.size() > 0 || !wire_->is_quiet())
        return false;
    rests_ = false;
    watch();
    return true;
}

std::string http_connection::look()
{
    if (std::chrono::steady_clock::now() >= limits_.deadline)
        return "the deadline has passed";
    auto const timeout = limits_.timeout.count();
    switch (slowness_.look(wire_->arrived(), wire_->at_hand())) {
        case slowness::verdict::fine:
            return is_outrun() ? "another mirror is far faster" : std::string{};
        case slowness::verdict::silent:
            return fmt::format("nothing came for {} ms", timeout);
        case slowness::verdict::header_too_slow:
            return fmt::format("no answer came within {} ms", timeout);
        case slowness::verdict::body_too_slow:
            return fmt::format("only {} bytes came in {} ms: less than {} bytes a second", slowness_.measured(),
                               timeout, limits_.min_speed);
    }
    return {};
}

answer http_connection::taken_from(answer_parser const& parser, error_code code) const
{
    std::string why;
    auto found = take_answer(parser, code, why);
    check(code, std::move(why));
    return found;
}

bool http_connection::is_outrun() const
{
    auto const came = slowness_.came_in_body();
    auto const look = std::chrono::duration<double>{limits_.timeout}.count() / looks_per_timeout;
    return came && limits_.is_outrun && limits_.is_outrun(static_cast<double>(*came) / look);
}

void http_connection::check(error_code code, std::string why) const
{
    if (code && !too_slow_.empty())
        fail(errc::gave_up, too_slow_);
    if (code)
        fail(code, why.empty() ? wire_->why() : std::move(why));
}

// What came along with a header lies in ordinary memory: a gather to a GPU has read it when it returns.
std::size_t http_connection::place_early(memory_span to, error_code& code)
{
    auto const size = std::min(early_.size(), to.size());
    if (size == 0)
        return 0;
    fragment const piece{reinterpret_cast<std::uintptr_t>(early_.cdata().data()), size, memory_kind::host};
    auto const placed = gather({&piece, 1}, to.first(size), stream_, code);
    early_.consume(placed);
    return placed;
}

}  // namespace gpurx::ingest::detail
