// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <gpurx/ingest/error.hpp>

#include <memory>
#include <sstream>

#include "../net/http_date.hpp"
#include "../net/private_socket.hpp"
#include "../net/proxy.hpp"
#include "../net/resolve.hpp"
#include "../net/tls_wire.hpp"

namespace gpurx::ingest::detail::s3 {

namespace {

namespace http = boost::beast::http;

constexpr unsigned http_1_1 = 11;

// Without a coroutine of its own, in which clang-tidy 14 gets lost.
constexpr auto direct = asio::as_tuple(asio::deferred);

using endpoints = std::vector<asio::ip::tcp::endpoint>;
using answer_parser = http::response_parser<http::string_body>;

// As a tls_wire, as far as an exchange needs it.
class plain_line {
  public:
    explicit plain_line(asio::any_io_executor const& executor) : socket_{executor} {}

    [[nodiscard]] asio::awaitable<error_code> async_connect(endpoints const& to)
    {
        return async_connect_private(socket_, to);
    }
    [[nodiscard]] asio::awaitable<wire::transferred> async_write(asio::const_buffer from)
    {
        co_return co_await asio::async_write(socket_, from, direct);
    }
    [[nodiscard]] asio::awaitable<wire::transferred> async_read_some(asio::mutable_buffer to)
    {
        co_return co_await socket_.async_read_some(to, direct);
    }
    [[nodiscard]] static std::string why() { return {}; }
    void close() noexcept
    {
        error_code ignored;
        socket_.close(ignored);
    }

  private:
    asio::ip::tcp::socket socket_;
};

[[noreturn]] void fail_exchange(error_code code, std::string advice)
{
    throw system_error{code, {.operation = {}, .object = {}, .kernel_message = {}, .advice = std::move(advice)}};
}

std::string request_of(exchange const& what)
{
    auto const is_passed_on = what.proxy && !what.to.secure;
    auto const to = is_passed_on ? in_absolute_form(what.to) : what.to;
    http::request<http::empty_body> request{http::string_to_verb(what.method), to.target, http_1_1};
    request.set(http::field::host, what.to.authority);
    request.set(http::field::user_agent, "gpurx");
    request.set(http::field::connection, "close");
    for (auto const& each : what.fields)
        request.set(each.name, each.value);
    for (auto const& each : is_passed_on ? proxy_fields(*what.proxy) : header_fields{})
        request.set(each.name, each.value);
    if (what.method == "PUT")
        request.set(http::field::content_length, "0");
    std::ostringstream text;
    text << request;
    return text.str();
}

std::string string_of(boost::beast::string_view field)
{
    return {field.data(), field.size()};
}

template <class Line>
asio::awaitable<error_code> converse(Line& line, endpoints const& to, std::string const& request, answer_parser& parser)
{
    constexpr std::size_t piece = std::size_t{16} << 10;
    if (auto const code = co_await line.async_connect(to); code)
        co_return code;
    auto const [broken, sent] = co_await line.async_write(asio::buffer(request));
    if (broken)
        co_return broken;
    boost::beast::flat_buffer buffer;
    while (!parser.is_done()) {
        auto const [failed, size] = co_await line.async_read_some(buffer.prepare(piece));
        buffer.commit(size);
        error_code code;
        if (failed == asio::error::eof)
            parser.put_eof(code);
        else if (failed)
            co_return failed;
        else
            buffer.consume(parser.put(buffer.cdata(), code));
        if (code && code != http::error::need_more)
            co_return code;
    }
    co_return error_code{};
}

// Closes the line when there has been time enough.
template <class Line>
asio::awaitable<void> converse_in_time(std::shared_ptr<Line> line, exchange const& what, endpoints const& to,
                                       answer_parser& parser)
{
    auto const late = std::make_shared<bool>(false);
    asio::steady_timer end{co_await asio::this_coro::executor, what.limit};
    end.async_wait([line, late](error_code code) {
        *late = !code;
        if (!code)
            line->close();
    });
    auto const request = request_of(what);
    auto const code = co_await converse(*line, to, request, parser);
    end.cancel();
    if (code && *late)
        fail_exchange(errc::gave_up, "no answer within " + std::to_string(what.limit.count()) + " ms");
    if (code)
        fail_exchange(code, line->why());
}

}  // namespace

asio::awaitable<small_answer> async_exchange(exchange what)
{
    auto const executor = co_await asio::this_coro::executor;
    auto const end = std::chrono::steady_clock::now() + what.limit;
    auto const& next = what.proxy ? *what.proxy : what.to;
    auto const found = co_await async_resolve(executor, next.host, next.port, end);
    if (found.code)
        fail_exchange(found.code, found.code == errc::gave_up ? "no address of " + next.host + " came in time" : "");
    auto const& to = found.endpoints;
    what.limit = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    answer_parser parser;
    parser.eager(true);
    parser.body_limit(what.most);
    if (what.to.secure) {
        auto const tls = what.tls != nullptr ? what.tls : make_tls_context({});
        auto line = std::make_shared<tls_wire>(executor, tls, what.to.host,
                                               what.proxy ? connect_request(what.to, *what.proxy) : std::string{});
        co_await converse_in_time(std::move(line), what, to, parser);
    } else {
        auto line = std::make_shared<plain_line>(executor);
        co_await converse_in_time(std::move(line), what, to, parser);
    }
    auto const& answer = parser.get();
    co_return small_answer{.status = answer.result_int(),
                           .reason = string_of(answer.reason()),
                           .region = string_of(answer["x-amz-bucket-region"]),
                           .retry_after = parse_retry_after(
                               string_of(answer[http::field::retry_after]), string_of(answer[http::field::date]),
                               std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now())),
                           .body = answer.body()};
}

}  // namespace gpurx::ingest::detail::s3
