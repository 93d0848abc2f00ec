// SPDX-License-Identifier: Apache-2.0
#include "http_connection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/read_size.hpp>
#include <boost/beast/http/error.hpp>
#include <gpurx/gather.hpp>
#include <gpurx/ingest/error.hpp>
#include <iterator>
#include <span>

#include "environment.hpp"
#include "retry.hpp"
#include "tcp.hpp"

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

std::string request_of(exchange const& what)
{
    auto const is_passed_on = what.proxy && !what.to.secure;
    header_fields fields{{"Host", what.to.authority}, {"User-Agent", "gpurx"}, {"Connection", "close"}};
    if (what.method != "GET")
        fields.push_back({"Content-Length", std::to_string(what.body.size())});
    auto more = what.fields;
    if (is_passed_on)
        std::ranges::move(proxy_fields(*what.proxy), std::back_inserter(more));
    return request_text(what.method, is_passed_on ? in_absolute_form(what.to).target : what.to.target, fields, more) +
           what.body;
}

asio::awaitable<exchanged> converse(std::shared_ptr<http_connection> on, std::vector<asio::ip::tcp::endpoint> to,
                                    std::string request, std::size_t most)
{
    co_await on->async_connect(to);
    co_await on->async_send(std::move(request));
    exchanged found;
    found.head = co_await on->async_whole_answer(found.body, most);
    co_return found;
}

}  // namespace

http_connection::http_connection(asio::any_io_executor const& executor, std::unique_ptr<wire> below,
                                 connection_limits const& limits)
    : wire_{std::move(below)}, limits_{limits}, stall_{bytes_in(limits.timeout, limits.min_speed)}, next_look_{executor}
{}

asio::awaitable<void> http_connection::async_connect(std::vector<asio::ip::tcp::endpoint> const& to)
{
    stall_.wait_for(stall_detector::waiting_for::header);
    watch();
    check(co_await wire_->async_connect(to));
}

asio::awaitable<void> http_connection::async_send(std::string request)
{
    stall_.wait_for(stall_detector::waiting_for::header);
    auto const [code, sent] = co_await wire_->async_write(asio::buffer(request));
    check(code);
}

asio::awaitable<answer> http_connection::async_answer(unsigned looks)
{
    stall_.wait_for(stall_detector::waiting_for::header, looks);
    auto found = co_await read_header();
    while (found.status < 200)
        found = co_await read_header();
    stall_.wait_for(stall_detector::waiting_for::nothing);
    co_return found;
}

asio::awaitable<answer> http_connection::read_header()
{
    answer_reader reader;
    co_return co_await read(reader);
}

asio::awaitable<answer> http_connection::async_whole_answer(std::string& body, std::size_t at_most)
{
    stall_.wait_for(stall_detector::waiting_for::header);
    answer found;
    do {
        answer_reader reader{at_most};
        found = co_await read(reader);
        body = reader.take_body();
    } while (found.status < 200);
    stall_.wait_for(stall_detector::waiting_for::nothing);
    co_return found;
}

asio::awaitable<answer> http_connection::read(answer_reader& reader)
{
    error_code code;
    while (!reader.is_done() && (!code || code == http::error::need_more)) {
        if (early_.size() == 0 || code == http::error::need_more)
            code = co_await read_early();
        if (code == asio::error::eof)
            reader.put_end(code);
        else if (!code)
            early_.consume(reader.put(early_.cdata(), code));
    }
    std::string why;
    auto found = reader.take(code, why);
    check(code, std::move(why));
    co_return found;
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

asio::awaitable<http_connection::transferred> http_connection::async_body(memory_span to, cuda_stream_ref stream)
{
    error_code code;
    auto const placed = place_early(to, stream, code);
    if (code || placed == to.size())
        co_return transferred{code, placed};
    stall_.wait_for(stall_detector::waiting_for::body);
    auto const [failed, read] = co_await wire_->async_read(to.subspan(placed, to.size() - placed), stream);
    stall_.wait_for(stall_detector::waiting_for::nothing);
    co_return transferred{failed, placed + read};
}

asio::awaitable<http_connection::transferred> http_connection::async_body(host_span to)
{
    return async_body(destination{to}.where(), {});
}

asio::awaitable<void> http_connection::async_skip(std::uint64_t bytes)
{
    auto const early = static_cast<std::size_t>(std::min<std::uint64_t>(early_.size(), bytes));
    early_.consume(early);
    stall_.wait_for(stall_detector::waiting_for::body);
    auto const [code, read] = co_await wire_->async_skip(bytes - early);
    stall_.wait_for(stall_detector::waiting_for::nothing);
    check(code);
}

asio::awaitable<std::string> http_connection::async_excerpt(std::size_t at_most)
{
    std::string text(std::min(early_.size(), at_most), '\0');
    early_.consume(asio::buffer_copy(asio::buffer(text), early_.data()));
    if (!text.empty())
        co_return text;
    text.resize(at_most);
    stall_.wait_for(stall_detector::waiting_for::body);
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
        // It takes connections and says nothing: others of its name may answer.
        if (self->wire_->peer() && self->wire_->arrived() == 0)
            note_silent(*self->wire_->peer());
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
    switch (stall_.look(wire_->arrived(), wire_->at_hand())) {
        case stall_detector::verdict::fine:
            return is_outrun() ? "another mirror is far faster" : std::string{};
        case stall_detector::verdict::silent:
            return fmt::format("no byte came for {} ms (timeout)", timeout);
        case stall_detector::verdict::header_too_slow:
            return fmt::format("no answer came within {} ms (timeout)", timeout);
        case stall_detector::verdict::body_too_slow:
            return fmt::format("only {} bytes came in {} ms (timeout): less than {} bytes a second (min_speed)",
                               stall_.measured(), timeout, limits_.min_speed);
    }
    return {};
}

bool http_connection::is_outrun() const
{
    auto const came = stall_.came_in_body();
    auto const look = std::chrono::duration<double>{limits_.timeout}.count() / looks_per_timeout;
    return came && limits_.is_outrun && limits_.is_outrun(static_cast<double>(*came) / look);
}

void http_connection::check(error_code code, std::string why) const
{
    if (code && !too_slow_.empty())
        fail(errc::gave_up, too_slow_);
    if (code == errc::tls_failure && wire_->may_pass())
        throw passing_error{code, {.operation = {}, .object = {}, .kernel_message = {}, .advice = wire_->why()}};
    if (code)
        fail(code, why.empty() ? wire_->why() : std::move(why));
}

// What came along with a header lies in ordinary memory: a gather to a GPU has read it when it returns.
std::size_t http_connection::place_early(memory_span to, cuda_stream_ref stream, error_code& code)
{
    auto const size = std::min(early_.size(), to.size());
    if (size == 0)
        return 0;
    fragment const piece{reinterpret_cast<std::uintptr_t>(early_.cdata().data()), size, memory_kind::host};
    auto const placed = gather({&piece, 1}, to.first(size), stream, code);
    early_.consume(placed);
    return placed;
}

// ---- small answers ----

asio::awaitable<exchanged> async_exchange(exchange what)
{
    auto const strand = asio::make_strand(co_await asio::this_coro::executor);
    auto const end = std::chrono::steady_clock::now() + what.limit;
    auto const& next = what.proxy ? *what.proxy : what.to;
    auto const found = co_await async_resolve(strand, next.host, next.port, end);
    if (found.code)
        fail(found.code, found.code == errc::gave_up ? "no address of " + next.host + " came in time" : "");
    if (what.to.secure && what.tls == nullptr)
        what.tls = make_tls_context({});
    auto line = make_socket_wire(strand, what.to.secure ? what.tls : nullptr, what.to.host,
                                 what.to.secure && what.proxy ? connect_request(what.to, *what.proxy) : std::string{});
    connection_limits const limits{.timeout = what.limit, .deadline = end};
    auto const on = std::make_shared<http_connection>(strand, std::move(line), limits);
    auto request = request_of(what);
    try {
        co_return co_await asio::co_spawn(strand, converse(on, found.endpoints, std::move(request), what.most),
                                          asio::use_awaitable);
    } catch (system_error const& failure) {
        if (failure.code() != errc::gave_up)
            throw;
    }
    fail(errc::gave_up, fmt::format("no answer within {} ms", what.limit.count()));
}

}  // namespace gpurx::ingest::detail
