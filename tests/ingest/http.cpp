// SPDX-License-Identifier: Apache-2.0
//
// An object against a server that does what servers do: well, badly, and not at all.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/crc.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <climits>
#include <functional>
#include <gpurx/ingest/object.hpp>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "eventually.hpp"
#include "http_bed.hpp"

namespace gpurx::test {

namespace {

using Catch::Matchers::ContainsSubstring;
using ingest::fetch_options;
using ingest::placement;

std::uint32_t crc_of(std::string const& bytes)
{
    boost::crc_optimal<32, 0x1edc6f41, 0xffffffff, 0xffffffff, true, true> crc;
    crc.process_bytes(bytes.data(), bytes.size());
    return crc.checksum();
}

// How often each byte was asked for.
std::vector<unsigned> asked_for(http_server const& server, std::size_t size)
{
    std::vector<unsigned> times(size);
    for (auto const& request : server.requests()) {
        REQUIRE(request.range);
        for (auto i = request.range->first; i <= std::min<std::uint64_t>(request.range->second, size - 1); ++i)
            ++times[i];
    }
    return times;
}

// And how long it took, of the time of a clock that stands still while anybody has something to do.
std::pair<outcome, std::chrono::nanoseconds> timed_fetch(world& in, std::string const& url,
                                                         fetch_options const& options)
{
    fake_clock const clock;
    auto const start = std::chrono::steady_clock::now();
    auto result = fetch(in, url, options);
    return {std::move(result), std::chrono::steady_clock::now() - start};
}

std::pair<outcome, std::chrono::nanoseconds> timed_fetch_from(http_server const& server, fetch_options const& options)
{
    world in{any_transport(), {.max_flows = 5}};
    return timed_fetch(in, server.url(), options);
}

bool all_once(std::vector<unsigned> const& times)
{
    return std::ranges::all_of(times, [](unsigned n) { return n == 1; });
}

}  // namespace

TEST_CASE("an object comes through several connections, each byte asked for once")
{
    http_content const object{content_of(GENERATE(1, 9'999, 10'000, 10'001, 123'456))};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    auto const result = fetch_from(server);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(result.ranges);
    CHECK(all_once(asked_for(server, object.bytes.size())));
    CHECK(result.stats.requests == (object.bytes.size() + 9'999) / 10'000);
    // One that had nothing left to ask for may not be accepted yet.
    CHECK(eventually([&] { return server.connections() == result.stats.connections; }));
    CHECK(result.stats.connections <= 3);
    CHECK(result.stats.bytes_placed == object.bytes.size());
    CHECK(result.stats.retries == 0);
    CHECK_FALSE(result.crc);
}

TEST_CASE("a second request is under way before the first answer has ended")
{
    http_content const object{content_of(50'000)};
    std::atomic<unsigned> ahead = 0;
    http_server server{[&](http_request const& request, http_reply& reply) {
        auto const body = object.body(request);
        reply.send(object.header(request));
        reply.send(body.substr(0, body.size() - 1));
        // All but the last has a next one. That is to come while this answer lacks a byte: nobody else can send that.
        if (request.range->second + 1 < object.bytes.size()) {
            fake_clock::sleep_until([&] { return reply.another_waits(); });
            ahead += reply.another_waits() ? 1 : 0;
        }
        reply.send(body.substr(body.size() - 1));
    }};
    auto options = options_for_tests();
    options.flows = 1;
    auto const result = fetch_from(server, options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(ahead == 4);
    CHECK(server.requests().size() == 5);
    CHECK(server.connections() == 1);
}

TEST_CASE("a server without ranges is read through one connection")
{
    http_content const object{content_of(123'456)};
    http_server server{[&](http_request request, http_reply& reply) {
        request.range.reset();
        object.serve(request, reply);
    }};
    auto const result = fetch_from(server);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK_FALSE(result.ranges);
    CHECK(server.connections() == 1);
    CHECK(result.stats.requests == 1);
}

TEST_CASE("a server without ranges that is cut off is read from the start again, up to what is missing")
{
    http_content const object{content_of(123'456)};
    http_server server{[&](http_request request, http_reply& reply) {
        request.range.reset();
        reply.send(object.header(request));
        if (request.number < 2) {
            reply.send(object.body(request).substr(0, 40'000 + request.number * 20'000));
            reply.close();
        } else {
            reply.send(object.body(request));
        }
    }};
    auto const result = fetch_from(server);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(server.connections() == 3);
    CHECK(result.stats.retries == 2);
    CHECK(result.stats.bytes_placed == object.bytes.size());
}

TEST_CASE("an empty object is one of no bytes")
{
    auto const with_range = GENERATE(true, false);
    http_content const object{""};
    http_server server{[&](http_request request, http_reply& reply) {
        if (!with_range)
            request.range.reset();
        object.serve(request, reply);
    }};
    auto const result = fetch_from(server);
    CHECK(result.error.empty());
    CHECK(result.bytes.empty());
    CHECK(result.stats.requests == 1);
}

TEST_CASE("redirects are followed, absolute and relative")
{
    http_content const object{content_of(30'000)};
    http_server other{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    http_server server{[&](http_request const& request, http_reply& reply) {
        auto const to = request.target == "/object" ? std::string{"deeper/place?x=1"} : other.url("/there");
        reply.send(fmt::format("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 5\r\n\r\nmoved", to));
    }};
    auto const result = fetch_from(server);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(result.stats.redirects == 2);
    auto const requests = server.requests();
    REQUIRE(requests.size() == 2);
    CHECK(requests[1].target == "/deeper/place?x=1");
    for (auto const& request : other.requests())
        CHECK(request.target == "/there");
}

TEST_CASE("a redirect that cannot be followed is an error")
{
    world in{any_transport(), {.max_flows = 5}};  // before sections, as it generates
    std::string location;
    std::string expected;
    SECTION("in circles")
    {
        location = "/object";
        expected = "more than 10 redirects";
    }
    SECTION("to somewhere else")
    {
        location = "ftp://127.0.0.1/object";
        expected = "must begin with http:// or https://";
    }
    SECTION("to nowhere")
    {
        location = "http://[";
        expected = "the server's redirect cannot be followed";
    }
    http_server server{[&](http_request const&, http_reply& reply) {
        reply.send(fmt::format("HTTP/1.1 301 Moved\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", location));
    }};
    auto const result = fetch(in, server.url());
    CHECK(result.code == ingest::errc::bad_redirect);
    CHECK_THAT(result.error, ContainsSubstring(expected));
    CHECK_THAT(result.error, ContainsSubstring(server.url()));
}

TEST_CASE("a refusal is an error with the server's text, and is not retried")
{
    auto const chunked = GENERATE(false, true);
    http_server server{[&](http_request const&, http_reply& reply) {
        reply.send(
            chunked
                ? "HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n13\r\n<Code>Denied</Code>\r\n0\r\n\r\n"
                : "HTTP/1.1 403 Forbidden\r\nContent-Length: 19\r\n\r\n<Code>Denied</Code>");
    }};
    auto const result = fetch_from(server);
    CHECK(result.code == ingest::errc::http_status);
    CHECK_THAT(result.error, ContainsSubstring("403 Forbidden: <Code>Denied</Code>"));
    CHECK_THAT(result.error, ContainsSubstring(server.url()));
    CHECK(result.stats.requests == 1);
}

TEST_CASE("a refusal for the moment is tried again")
{
    http_content const object{content_of(60'000)};
    auto const refused = GENERATE(1U, 2U, 1000U);
    std::atomic<unsigned> count = 0;
    http_server server{[&](http_request const& request, http_reply& reply) {
        // The first request, and some in the middle.
        if (request.range->first == 0 || request.range->first == 30'000) {
            if (count++ < refused) {
                reply.send("HTTP/1.1 503 Slow Down\r\nContent-Length: 4\r\n\r\nbusy");
                return;
            }
        }
        object.serve(request, reply);
    }};
    auto const result = fetch_from(server);
    if (refused < 1000) {
        CHECK(result.error.empty());
        CHECK(result.bytes == object.bytes);
        CHECK(result.stats.retries == refused);
    } else {
        CHECK(result.code == ingest::errc::http_status);
        CHECK_THAT(result.error, ContainsSubstring("503 Slow Down: busy"));
        CHECK_THAT(result.error, ContainsSubstring("3 attempts"));
    }
}

TEST_CASE("an answer of no stated length is refused, with the reason")
{
    world in{any_transport(), {.max_flows = 5}};  // before sections, as it generates
    std::string field;
    std::string expected;
    SECTION("chunked")
    {
        field = "Transfer-Encoding: chunked\r\n";
        expected = "Transfer-Encoding: chunked";
    }
    SECTION("until the connection ends")
    {
        expected = "no Content-Length";
    }
    SECTION("compressed")
    {
        field = "Content-Encoding: gzip\r\nContent-Length: 3\r\n";
        expected = "Content-Encoding: gzip";
    }
    http_server server{
        [&](http_request const&, http_reply& reply) { reply.send("HTTP/1.1 200 OK\r\n" + field + "\r\nabc"); }};
    auto const result = fetch(in, server.url());
    CHECK(result.code == ingest::errc::unknown_size);
    CHECK_THAT(result.error, ContainsSubstring(expected));
}

TEST_CASE("an object that was uploaded in signed chunks comes as it is stored")
{
    http_content object{content_of(60'000)};
    object.fields = "Content-Encoding: aws-chunked\r\n";
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    auto const result = fetch_from(server);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
}

TEST_CASE("only the missing bytes of a cut connection are fetched again")
{
    http_content const object{content_of(100'000)};
    auto const with_reset = GENERATE(false, true);
    http_server server{[&](http_request const& request, http_reply& reply) {
        // In the middle of the third and of the fifth body.
        if (request.number == 2 || request.number == 4) {
            reply.send(object.header(request));
            reply.send(object.body(request).substr(0, 4'000));
            with_reset ? reply.reset() : reply.close();
        } else {
            object.serve(request, reply);
        }
    }};
    auto const result = fetch_from(server);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(result.stats.bytes_placed == object.bytes.size());
    CHECK(result.stats.retries >= 1);
}

TEST_CASE("a connection that closes behind each answer costs connections only")
{
    http_content object{content_of(70'000)};
    auto const announced = GENERATE(true, false);
    if (announced)
        object.fields = "Connection: close\r\n";
    http_server server{[&](http_request const& request, http_reply& reply) {
        object.serve(request, reply);
        reply.close();
    }};
    auto options = options_for_tests();
    options.flows = 1;
    auto const result = fetch_from(server, options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(server.connections() == 7);
    CHECK(result.stats.retries == (announced ? 0U : 6U));
}

TEST_CASE("a server that never sends what it announces is given up")
{
    http_content const object{content_of(100'000)};
    auto const first_too = GENERATE(true, false);
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.number > 0 || first_too)
            reply.close();
        else
            object.serve(request, reply);
    }};
    auto const result = fetch_from(server);
    CHECK(result.code == ingest::errc::gave_up);
    CHECK_THAT(result.error, ContainsSubstring("the connection ended before the answer; 3 attempts"));
}

TEST_CASE("a silent server is given up after the timeout")
{
    http_content const object{content_of(100'000)};
    auto const part = GENERATE(0U, 1U, 5'000U);
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (part > 0 && request.number == 0) {
            reply.send(object.header(request));
            reply.send(object.body(request).substr(0, part));
        }
    }};
    auto options = options_for_tests();
    options.timeout = 400ms;
    options.attempts = part == 0 ? 2 : 1;
    auto const [result, took] = timed_fetch_from(server, options);
    CHECK(took >= options.timeout * options.attempts);
    CHECK(result.code == ingest::errc::gave_up);
    CHECK_THAT(result.error, ContainsSubstring(part == 0 ? "no answer came within 400 ms (timeout)"
                                                         : "no byte came for 400 ms (timeout)"));
}

TEST_CASE("a server that drops what comes while it answers costs one timeout, not one for each request")
{
    http_content const object{content_of(100'000)};
    auto const for_good = GENERATE(false, true);
    std::atomic<bool> drops = false;
    std::atomic<unsigned> deaf = UINT_MAX;  // a connection
    http_server server{[&](http_request const& request, http_reply& reply) {
        auto const dropped = drops.exchange(false);
        if (dropped && for_good)
            deaf = request.connection;
        if (dropped || deaf == request.connection)
            return;
        fake_clock::sleep_for(20ms);  // the next request is there by then
        drops = reply.another_waits();
        object.serve(request, reply);
    }};
    auto options = options_for_tests();
    options.flows = 1;
    auto const [result, took] = timed_fetch_from(server, options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(result.stats.retries == 1);
    CHECK(result.stats.connections == 2);
    CHECK(took < options.timeout);
}

TEST_CASE("a stall is noticed after the timeout")
{
    http_content const object{content_of(100'000)};
    http_server server{[&](http_request const& request, http_reply& reply) {
        reply.send(object.header(request));
        reply.send(object.body(request).substr(0, 5'000));
    }};
    auto options = options_for_tests();
    options.timeout = 800ms;
    options.chunk_size = object.bytes.size();
    options.attempts = 1;
    auto const [result, took] = timed_fetch_from(server, options);
    CHECK_THAT(result.error, ContainsSubstring("no byte came for 800 ms (timeout)"));
    CHECK(took >= 800ms);
    CHECK(took <= 1000ms);  // it looks each 100 ms, and the first look sees the bytes come
}

TEST_CASE("a server that is away for seconds is waited for, once it has answered")
{
    http_content const object{content_of(100'000)};
    using clock = std::chrono::steady_clock;
    std::atomic<clock::time_point> back = clock::time_point::min();
    std::atomic<unsigned> refused = 0;
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (clock::now() < back.load()) {
            ++refused;
            return reply.reset();
        }
        object.serve(request, reply);
        if (request.number == 3)
            back = clock::now() + 5s;
    }};
    auto const result = fetch_from(server, {.flows = 3, .chunk_size = 10'000});
    CHECK(refused > 3);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
}

TEST_CASE("a server that limits requests is waited for as long as it says")
{
    http_content const object{content_of(20'000)};
    using clock = std::chrono::steady_clock;
    std::atomic<clock::time_point> back = clock::time_point::min();
    std::atomic<unsigned> early = 0;
    auto const* const refusal =
        GENERATE("429 Too Many Requests\r\nRateLimit: \"api\";r=0;t=", "529 Overloaded\r\nRetry-After: ");
    // The pause of its own would be 0.1 s.
    constexpr auto wait = 3s;
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.number == 0)
            back = clock::now() + wait;
        if (clock::now() >= back.load())
            return object.serve(request, reply);
        ++early;
        reply.send(fmt::format("HTTP/1.1 {}{}\r\nContent-Length: 0\r\n\r\n", refusal, wait.count()));
    }};
    auto const result = fetch_from(server, {.flows = 1, .attempts = 2});
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(early == 1);
}

TEST_CASE("a server that has never answered is given up soon")
{
    world in{transport::copy, {.max_flows = 5}};
    auto const url = fmt::format("http://127.0.0.1:{}/object", nobody_there(in).port());
    auto const [result, took] = timed_fetch(in, url, {});
    CHECK(result.code == asio::error::connection_refused);
    CHECK_THAT(result.error, ContainsSubstring("/object"));
    CHECK_THAT(result.error, ContainsSubstring("5 attempts"));
    CHECK(took < 2s);
}

TEST_CASE("a slow server is not given up where any speed will do")
{
    http_content const object{content_of(12)};
    http_server server{[&](http_request const& request, http_reply& reply) {
        reply.send(object.header(request));
        for (auto const& byte : object.body(request)) {
            fake_clock::sleep_for(60ms);
            reply.send({&byte, 1});
        }
    }};
    auto options = options_for_tests();
    options.timeout = 500ms;
    options.min_speed = 0;
    options.attempts = 1;
    auto const result = fetch_from(server, options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
}

TEST_CASE("an object that changes meanwhile is an error")
{
    world in{any_transport(), {.max_flows = 5}};  // before sections, as it generates
    http_content const before{content_of(100'000)};
    http_content after{content_of(100'000), "\"two\""};
    std::string expected = "its ETag was \"one\", and is \"two\"";
    SECTION("its ETag") {}
    SECTION("its size, longer")
    {
        after = {content_of(100'001)};
        expected = "its size was 100000, and is 100001";
    }
    SECTION("its size, much shorter")
    {
        after = {content_of(100)};
        expected = "its size was 100000, and is 100";
    }
    http_server server{[&](http_request const& request, http_reply& reply) {
        (request.number < 3 ? before : after).serve(request, reply);
    }};
    auto const result = fetch(in, server.url());
    CHECK(result.code == ingest::errc::object_changed);
    CHECK_THAT(result.error, ContainsSubstring(expected));
}

TEST_CASE("without an ETag the date tells that an object changed")
{
    http_content before{content_of(100'000), "", "Last-Modified: Sat, 21 Nov 2026 10:00:00 GMT\r\n"};
    http_content after{content_of(100'000), "", "Last-Modified: Sat, 21 Nov 2026 10:00:01 GMT\r\n"};
    http_server server{[&](http_request const& request, http_reply& reply) {
        (request.number < 3 ? before : after).serve(request, reply);
    }};
    auto const result = fetch_from(server);
    CHECK(result.code == ingest::errc::object_changed);
}

TEST_CASE("bytes that were not asked for are an error")
{
    world in{any_transport(), {.max_flows = 5}};  // before sections, as it generates
    std::string header;
    auto expected = ingest::errc::wrong_range;
    SECTION("others")
    {
        header = "Content-Range: bytes 1-10/100000\r\nContent-Length: 10\r\n";
    }
    SECTION("more")
    {
        header = "Content-Range: bytes 0-10000/100000\r\nContent-Length: 10001\r\n";
    }
    SECTION("of a length that does not agree")
    {
        header = "Content-Range: bytes 0-9/100000\r\nContent-Length: 11\r\n";
        expected = ingest::errc::bad_response;
    }
    SECTION("of no object's size")
    {
        header = "Content-Range: bytes 0-9/*\r\nContent-Length: 10\r\n";
        expected = ingest::errc::bad_response;
    }
    SECTION("in another unit")
    {
        header = "Content-Range: lines 0-9/100\r\nContent-Length: 10\r\n";
        expected = ingest::errc::bad_response;
    }
    http_server server{[&](http_request const&, http_reply& reply) {
        reply.send("HTTP/1.1 206 Partial Content\r\n" + header + "\r\n0123456789");
    }};
    auto const result = fetch(in, server.url());
    INFO(result.error);
    CHECK(result.code == expected);
}

TEST_CASE("a server may send less than it was asked for")
{
    http_content const object{content_of(50'000)};
    http_server server{[&](http_request request, http_reply& reply) {
        request.range->second = std::min(request.range->second, request.range->first + 6'999);
        object.serve(request, reply);
    }};
    auto const result = fetch_from(server);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
}

TEST_CASE("headers may come byte by byte, and behind interim answers")
{
    http_content const object{content_of(25'000)};
    http_server server{[&](http_request const& request, http_reply& reply) {
        reply.send_slowly("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nX: y\r\n\r\n" +
                          object.header(request));
        reply.send_slowly(object.body(request).substr(0, 100));
        reply.send(object.body(request).substr(std::min<std::size_t>(object.body(request).size(), 100)));
    }};
    auto const result = fetch_from(server);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
}

TEST_CASE("long headers are read, endless ones are not")
{
    auto const length = GENERATE(5'000U, 15'900U, 20'000U, 200'000U);
    http_content const object{content_of(25'000), "\"one\"", "X-Long: " + std::string(length, 'x') + "\r\n"};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    auto const result = fetch_from(server);
    if (length < 16'000) {
        CHECK(result.error.empty());
        CHECK(result.bytes == object.bytes);
    } else {
        CHECK(result.code == ingest::errc::bad_response);
        CHECK_THAT(result.error, ContainsSubstring("longer than 16 KiB"));
    }
}

TEST_CASE("an answer that is not HTTP is an error")
{
    auto const* const garbage = GENERATE("SSH-2.0-OpenSSH_9.2\r\n", "\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
                                         "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 206 OK\r\nContent-Length: -1\r\n\r\n",
                                         "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n");
    http_server server{[&](http_request const&, http_reply& reply) { reply.send(garbage); }};
    auto const result = fetch_from(server);
    INFO(result.error);
    CHECK(result.code == ingest::errc::bad_response);
}

TEST_CASE("a refused connection is an error with the address")
{
    world in{any_transport()};
    // A port of those that a system gives to nobody.
    std::string const url = "http://127.0.0.1:1/object";
    auto const result = fetch(in, url);
    CHECK(result.code == asio::error::connection_refused);
    CHECK_THAT(result.error, ContainsSubstring(url));
    CHECK_THAT(result.error, ContainsSubstring("3 attempts"));
}

TEST_CASE("the front is read to the host, and the rest goes to its places")
{
    http_content const object{content_of(60'000)};
    auto const cut = GENERATE(false, true);
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (cut && request.number < 2) {
            reply.send(object.header(request));
            reply.send(object.body(request).substr(0, 1'000));
            reply.close();
            return;
        }
        object.serve(request, reply);
    }};
    auto const front_size = GENERATE(8U, 9'999U, 10'000U, 25'000U, 60'000U);
    world in{any_transport()};
    ingest::object file{in.io->get_executor(), *in.session, server.url(), options_for_tests()};
    std::string front(front_size, '\xee');
    std::string rest;
    outcome result;
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        co_await file.async_read_front(host_span{std::span{front}.first(5)});
        co_await file.async_read_front(host_span{std::span{front}.subspan(5)});
        CHECK(file.front() == front_size);
        rest.assign(file.size() - front_size, '\xee');
        placement const place{front_size, span_of(rest)};
        co_await file.async_fetch({&place, 1});
    });
    CHECK(result.error.empty());
    CHECK(front + rest == object.bytes);
    if (!cut)
        CHECK(all_once(asked_for(server, object.bytes.size())));
}

TEST_CASE("the front of an object that is served whole is read on where it was cut")
{
    http_content const object{content_of(60'000)};
    http_server server{[&](http_request request, http_reply& reply) {
        request.range.reset();
        reply.send(object.header(request));
        if (request.number < 2) {
            reply.send(object.body(request).substr(0, 3'000 * (request.number + 1)));
            reply.close();
        } else {
            reply.send(object.body(request));
        }
    }};
    world in{any_transport()};
    ingest::object file{in.io->get_executor(), *in.session, server.url(), options_for_tests()};
    std::string front(20'000, ' ');
    std::string rest(object.bytes.size() - front.size(), ' ');
    outcome result;
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        co_await file.async_read_front(host_span{std::span{front}});
        placement const place{front.size(), span_of(rest)};
        co_await file.async_fetch({&place, 1});
    });
    CHECK(result.error.empty());
    CHECK(front + rest == object.bytes);
    CHECK(server.connections() == 3);
}

TEST_CASE("to read the front beyond the end is an error")
{
    http_content const object{content_of(20)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    world in{any_transport()};
    ingest::object file{in.io->get_executor(), *in.session, server.url(), options_for_tests()};
    std::string front(21, ' ');
    outcome result;
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        co_await file.async_read_front(host_span{std::span{front}});
    });
    CHECK(result.code == asio::error::eof);
    CHECK(front.substr(0, 20) == object.bytes);
}

TEST_CASE("only ranges with a place are requested")
{
    http_content const object{content_of(200'000)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    world in{any_transport(), {.max_flows = 5}};
    ingest::object file{in.io->get_executor(), *in.session, server.url(), options_for_tests()};
    // In the first chunk, with gaps; far away, in no order; two that touch in the file and not in memory.
    std::map<std::uint64_t, std::string> pieces{
        {10, std::string(5, ' ')},      {5'000, std::string(100, ' ')},     {9'990, std::string(500, ' ')},
        {150'000, std::string(1, ' ')}, {50'000, std::string(25'000, ' ')}, {75'000, std::string(300, ' ')},
        {199'999, std::string(1, ' ')},
    };
    std::vector<placement> places;
    for (auto& [offset, bytes] : pieces)
        places.insert(places.begin(), {offset, span_of(bytes)});
    outcome result;
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        co_await file.async_fetch(places);
    });
    CHECK(result.error.empty());
    for (auto const& [offset, bytes] : pieces)
        CHECK(bytes == object.bytes.substr(offset, bytes.size()));
    auto const times = asked_for(server, object.bytes.size());
    CHECK(std::ranges::count_if(times, [](unsigned n) { return n > 1; }) == 0);
    // The first chunk, and what is behind it.
    CHECK(std::ranges::count(times, 1U) == 10'000 + 490 + 1 + 25'300 + 1);
}

TEST_CASE("places that cannot be served are refused before anything is asked for")
{
    http_content const object{content_of(20'000)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    world in{transport::copy};
    ingest::object file{in.io->get_executor(), *in.session, server.url(), options_for_tests()};
    std::string bytes(20'001, ' ');
    std::vector<placement> places;
    SECTION("beyond the end")
    {
        places = {{0, span_of(bytes)}};
    }
    SECTION("far beyond the end")
    {
        places = {{UINT64_MAX, span_of(bytes).first(1)}};
    }
    SECTION("overlapping")
    {
        places = {{100, span_of(bytes).first(10)}, {109, span_of(bytes).first(10)}};
    }
    SECTION("before the front")
    {
        places = {{4, span_of(bytes).first(10)}};
    }
    outcome result;
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        std::string front(5, ' ');
        co_await file.async_read_front(host_span{std::span{front}});
        co_await file.async_fetch(places);
    });
    CHECK(result.code == errc::bad_destination);
    CHECK(server.requests().size() == 1);
}

// As a server of S3 does.
std::string announcement_of(std::uint32_t crc)
{
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (int shift = 26; shift >= -4; shift -= 6)
        text += digits[(shift >= 0 ? crc >> shift : crc << -shift) & 63];
    return "x-amz-checksum-crc32c: " + text + "==\r\nx-amz-checksum-type: FULL_OBJECT\r\n";
}

TEST_CASE("a checksum that the server announces is compared")
{
    auto const bytes = content_of(55'000);
    auto crc = crc_of(bytes);
    auto const right = GENERATE(true, false);
    if (!right)
        crc ^= 1;
    http_content const object{bytes, "\"one\"", announcement_of(crc)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    auto options = options_for_tests();
    using checksum = fetch_options::checksum;
    options.crc32c = GENERATE(checksum::automatic, checksum::always, checksum::none);
    auto const result = fetch_from(server, options);
    CHECK(result.bytes == bytes);
    if (options.crc32c == checksum::none) {
        CHECK(result.error.empty());
        CHECK_FALSE(result.crc);
    } else if (right) {
        CHECK(result.error.empty());
        CHECK(result.crc == crc);
    } else {
        CHECK(result.code == ingest::errc::wrong_checksum);
        CHECK_THAT(result.error, ContainsSubstring(fmt::format("{:08x}", crc)));
    }
}

TEST_CASE("a store that refuses to be asked for checksums is read, and none is asked where none is wanted")
{
    http_content const object{content_of(60'000)};
    auto const* const refusal = GENERATE("400 Bad Request", "501 Not Implemented",
                                         "403 Forbidden, <Error><Code>SignatureDoesNotMatch</Code></Error>",
                                         "501 Not Implemented, <Error><Code>NotImplemented</Code></Error>");
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.text.find("x-amz-checksum-mode") == std::string::npos)
            return object.serve(request, reply);
        std::string_view const all{refusal};
        auto const body = all.substr(std::min(all.find('<'), all.size()));
        auto const is_head = request.text.starts_with("HEAD");
        reply.send(fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\n\r\n{}", all.substr(0, all.find(',')), body.size(),
                               is_head ? "" : body));
    }};
    auto const place = GENERATE(as<std::string>{}, "", "s3://models/key");
    using enum ingest::fetch_options::checksum;
    auto const [checksum, refused] =
        GENERATE(table<ingest::fetch_options::checksum, unsigned>({{none, 0}, {automatic, 1}}));
    auto options = options_for_tests();
    options.crc32c = checksum;
    options.attempts = 1;
    options.s3 = {.endpoint = server.url(""), .region = {}, .anonymous = true, .profile = {}};
    world in{any_transport(), {.max_flows = 5}};
    auto const result = fetch(in, place.empty() ? server.url() : place, options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    auto const asked = std::ranges::count_if(server.requests(), [](http_request const& each) {
        return each.text.find("x-amz-checksum-mode") != std::string::npos && each.text.starts_with("GET");
    });
    CHECK(asked == refused);
}

TEST_CASE("a signed URL of the second version is fetched as it is")
{
    http_content const object{content_of(60'000)};
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.text.find("x-amz-") == std::string::npos)
            return object.serve(request, reply);
        reply.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    }};
    auto options = options_for_tests();
    world in{any_transport(), {.max_flows = 5}};
    auto const result = fetch(in, server.url("/key?AWSAccessKeyId=id&Signature=a%2Bb%3D&Expires=1893456000"), options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    for (auto const& each : server.requests())
        CHECK(each.text.find("x-amz-") == std::string::npos);
}

TEST_CASE("a checksum is compared once all has come, in however many fetches, and with what comes again")
{
    http_content object{content_of(55'000), "\"one\""};
    object.fields = announcement_of(crc_of(object.bytes));
    auto damaged = object;
    damaged.bytes[2'500] ^= 1;
    std::atomic<bool> is_damaged = false;
    http_server server{
        [&](http_request const& request, http_reply& reply) { (is_damaged ? damaged : object).serve(request, reply); }};
    world in{any_transport(), {.max_flows = 5}};
    ingest::object file{in.io->get_executor(), *in.session, server.url(), options_for_tests()};
    std::string bytes(object.bytes.size(), ' ');
    auto const brings = [&](std::size_t begin, std::size_t end) {
        outcome result;
        run(in, result, [&]() -> asio::awaitable<void> {
            placement const place{begin, span_of(bytes).subspan(begin, end - begin)};
            co_await file.async_fetch({&place, 1});
        });
        return result.code;
    };
    outcome opened;
    run(in, opened, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        co_await file.async_read_front(host_span{std::span{bytes}.first(1000)});
    });
    CHECK(opened.error.empty());

    CHECK_FALSE(brings(30'000, 55'000));
    CHECK_FALSE(brings(2'000, 3'000));
    CHECK_FALSE(file.crc32c());
    CHECK_FALSE(brings(1'000, 30'000));
    CHECK(file.crc32c() == crc_of(object.bytes));
    CHECK(bytes == object.bytes);

    is_damaged = true;
    CHECK_FALSE(brings(30'000, 55'000));
    CHECK_FALSE(brings(2'000, 3'000));  // of which nobody says the checksum
    CHECK(brings(1'000, 30'000) == ingest::errc::wrong_checksum);
    is_damaged = false;
    CHECK_FALSE(brings(1'000, 30'000));
}

TEST_CASE("a checksum is computed over pieces, cuts and the front")
{
    http_content const object{content_of(100'000)};
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.number == 3) {
            reply.send(object.header(request));
            reply.send(object.body(request).substr(0, 777));
            reply.close();
        } else {
            object.serve(request, reply);
        }
    }};
    world in{any_transport(), {.max_flows = 5}};
    auto options = options_for_tests();
    options.crc32c = fetch_options::checksum::always;
    ingest::object file{in.io->get_executor(), *in.session, server.url(), options};
    std::string front(12'345, ' ');
    std::string rest(object.bytes.size() - front.size(), ' ');
    outcome result;
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        co_await file.async_read_front(host_span{std::span{front}});
        placement const place{front.size(), span_of(rest)};
        co_await file.async_fetch({&place, 1});
    });
    CHECK(result.error.empty());
    CHECK(file.crc32c() == crc_of(object.bytes));
}

TEST_CASE("a session with room for fewer flows is used with those")
{
    http_content const object{content_of(200'000)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    world in{any_transport(), {.max_flows = 2}};
    auto options = options_for_tests();
    options.flows = 4;
    auto const result = fetch(in, server.url(), options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(server.connections() <= 2);
}

TEST_CASE("a download that is cancelled ends, and writes nothing any more")
{
    http_content const object{content_of(100'000)};
    http_server server{[&](http_request const& request, http_reply& reply) {
        reply.send(object.header(request));
        reply.send(object.body(request).substr(0, 5'000));  // and nothing else, for now
    }};
    world in{any_transport(), {.max_flows = 5}};
    std::string bytes(object.bytes.size(), ' ');
    asio::cancellation_signal signal;
    std::optional<std::exception_ptr> ended;
    {
        auto options = options_for_tests();
        options.timeout = 60s;
        ingest::object file{in.io->get_executor(), *in.session, server.url(), options};
        placement const all{0, span_of(bytes)};
        auto work = [&]() -> asio::awaitable<void> {
            co_await file.async_open();
            co_await file.async_fetch({&all, 1});
        };
        asio::co_spawn(*in.io, work, asio::bind_cancellation_slot(signal.slot(), [&](std::exception_ptr failure) {
            ended = failure;
        }));
        in.run_until([&] { return file.stats().connections == 3; });
        signal.emit(asio::cancellation_type::terminal);
        in.run_until([&] { return ended.has_value(); });
    }
    REQUIRE(*ended);
    try {
        std::rethrow_exception(*ended);
    } catch (boost::system::system_error const& error) {
        CHECK(error.code() == asio::error::operation_aborted);
    }
    auto const copy = bytes;
    in.settle();
    CHECK(bytes == copy);
}

TEST_CASE("an io_context that is destroyed takes a download with it")
{
    http_content const object{content_of(100'000)};
    http_server server{[&](http_request const& request, http_reply& reply) {
        reply.send(object.header(request));
        reply.send(object.body(request).substr(0, 5'000));
    }};
    world in{any_transport(), {.max_flows = 5}};
    std::string bytes(object.bytes.size(), ' ');
    auto file = std::make_shared<ingest::object>(in.io->get_executor(), *in.session, server.url(), options_for_tests());
    asio::co_spawn(
        *in.io,
        [&bytes, file]() -> asio::awaitable<void> {
            co_await file->async_open();
            placement const all{0, span_of(bytes)};
            co_await file->async_fetch({&all, 1});
        },
        [](std::exception_ptr const&) {});
    in.run_until([&] { return file->stats().connections == 3; });
    file.reset();
    in.io.reset();
}

TEST_CASE("connections of one download run on several threads")
{
    http_content const object{content_of(3'000'000)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    fake_kernel kernel;
    test_session session{transport::copy, kernel, {.max_flows = 8}};
    asio::io_context io{4};
    std::string bytes(object.bytes.size(), ' ');
    ingest::object file{io.get_executor(),
                        *session,
                        server.url(),
                        {.flows = 6, .chunk_size = 10'000, .crc32c = fetch_options::checksum::always}};
    placement const all{0, span_of(bytes)};
    std::exception_ptr failure;
    asio::co_spawn(
        io,
        [&]() -> asio::awaitable<void> {
            co_await file.async_open();
            co_await file.async_fetch({&all, 1});
        },
        [&](std::exception_ptr error) { failure = error; });
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 4; ++i)
            threads.emplace_back([&] { io.run(); });
    }
    CHECK_FALSE(failure);
    CHECK(bytes == object.bytes);
    CHECK(file.crc32c() == crc_of(object.bytes));
    CHECK(all_once(asked_for(server, bytes.size())));
}

TEST_CASE("options that mean nothing are refused")
{
    world in{transport::copy};
    auto const make = [&](fetch_options const& options, char const* url = "http://h/") {
        ingest::object{in.io->get_executor(), *in.session, url, options};
    };
    CHECK_THROWS_AS(make({.flows = 0}), std::invalid_argument);
    CHECK_THROWS_AS(make({.chunk_size = 0}), std::invalid_argument);
    CHECK_THROWS_AS(make({.attempts = 0}), std::invalid_argument);
    CHECK_THROWS_AS(make({}, "ftp://h/"), system_error);
}

}  // namespace gpurx::test
