// SPDX-License-Identifier: Apache-2.0
#include "http_connection.hpp"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <gpurx/gather.hpp>
#include <gpurx/ingest/error.hpp>

#include "answer_parser.hpp"

namespace gpurx::ingest::detail {

namespace {

namespace http = boost::beast::http;

constexpr auto tuple = asio::as_tuple(asio::use_awaitable);

[[noreturn]] void fail(error_code code, std::string advice)
{
    throw system_error{code, {.operation = {}, .object = {}, .kernel_message = {}, .advice = std::move(advice)}};
}

}  // namespace

http_connection::http_connection(asio::any_io_executor const& executor, rx_session& session,
                                 std::chrono::milliseconds timeout, cuda_stream_ref stream)
    : receiver_{executor, session}, stream_{stream}, silence_{executor}, timeout_{timeout}
{}

asio::awaitable<void> http_connection::async_connect(std::vector<asio::ip::tcp::endpoint> const& to)
{
    watch();
    auto const [code, peer] = co_await receiver_.async_connect(to, tuple);
    check(code);
    // A second request must not wait for the acknowledgement of the first.
    error_code ignored;
    receiver_.set_option(asio::ip::tcp::no_delay{true}, ignored);
}

asio::awaitable<void> http_connection::async_send(std::string request)
{
    auto const [code, sent] = co_await asio::async_write(receiver_, asio::buffer(request), tuple);
    check(code);
}

asio::awaitable<answer> http_connection::async_answer()
{
    for (;;) {
        answer_parser parser;
        // Not use_awaitable: it would be a coroutine of its own, and clang-tidy 14 gets lost in it.
        auto const [code, size] =
            co_await http::async_read_header(receiver_, early_, parser, asio::as_tuple(asio::deferred));
        auto found = taken_from(parser, code);
        if (found.status >= 200)
            co_return found;
    }
}

asio::awaitable<http_connection::transferred> http_connection::async_body(device_span to)
{
    error_code code;
    auto const placed = place_early(to, code);
    if (code || placed == to.size())
        co_return transferred{code, placed};
    auto const [failed, read] = co_await async_read(receiver_, to.subspan(placed, to.size() - placed), stream_, tuple);
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
    auto const [code, read] = co_await async_read(receiver_, destination::nowhere(bytes - early), tuple);
    check(code);
}

asio::awaitable<std::string> http_connection::async_excerpt(std::size_t at_most)
{
    std::string text(std::min(early_.size(), at_most), '\0');
    early_.consume(asio::buffer_copy(asio::buffer(text), early_.data()));
    if (!text.empty())
        co_return text;
    text.resize(at_most);
    auto const [code, size] = co_await receiver_.async_read_some(asio::buffer(text), tuple);
    check(code);
    text.resize(size);
    co_return text;
}

// Looks now and then: a timer set anew for each packet would cost more than it tells.
void http_connection::watch()
{
    silence_.expires_after(timeout_);
    silence_.async_wait([weak = weak_from_this()](error_code code) {
        auto const self = weak.lock();
        if (code || self == nullptr)
            return;
        auto const now = self->receiver_.stats().bytes();
        if (std::exchange(self->seen_, now) != now)
            return self->watch();
        self->timed_out_ = true;
        self->receiver_.close();
    });
}

answer http_connection::taken_from(answer_parser const& parser, error_code code) const
{
    std::string why;
    auto found = take_answer(parser, code, why);
    check(code, std::move(why));
    return found;
}

void http_connection::check(error_code code, std::string why) const
{
    if (code && timed_out_)
        fail(errc::gave_up, "nothing came for " + std::to_string(timeout_.count()) + " ms");
    if (code)
        fail(code, std::move(why));
}

// What came along with a header lies in ordinary memory: a gather to a GPU has read it when it returns.
std::size_t http_connection::place_early(device_span to, error_code& code)
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
