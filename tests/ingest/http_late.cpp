// SPDX-License-Identifier: Apache-2.0
//
// What goes wrong late, or takes for ever: refusals of what was served before, answers of a byte at the front, and
// listings without end.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gpurx/ingest/checkpoint.hpp>
#include <gpurx/ingest/safetensors.hpp>

#include "http_bed.hpp"

namespace gpurx::test {

namespace {

using Catch::Matchers::ContainsSubstring;
using ingest::errc;
using ingest::fetch_options;

constexpr std::string_view expired =
    "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>";

// An object behind a redirect to a URL that is good for so many requests.
class expiring_server {
  public:
    expiring_server(http_content object, unsigned good_for) : object_{std::move(object)}, good_for_{good_for} {}

    void operator()(http_request const& request, http_reply& reply)
    {
        if (request.target == "/object") {
            ++signed_;
            return reply.send(fmt::format(
                "HTTP/1.1 302 Found\r\nLocation: /signed?X-Amz-Signature={}\r\nContent-Length: 0\r\n\r\n", signed_));
        }
        if (request.target != fmt::format("/signed?X-Amz-Signature={}", signed_) || used_[signed_]++ >= good_for_)
            return reply.send(
                fmt::format("HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\n\r\n{}", expired.size(), expired));
        auto now = object_;
        if (signed_ > 1)
            now.etag = later_etag;
        now.serve(request, reply);
    }

    std::string later_etag = "\"one\"";

  private:
    http_content object_;
    unsigned good_for_;
    std::atomic<unsigned> signed_ = 0;
    std::array<std::atomic<unsigned>, 1000> used_{};
};

// The front, and then nothing.
outcome read_front(world& in, std::string const& url, std::size_t size, fetch_options const& options)
{
    outcome result;
    ingest::object object{in.io->get_executor(), *in.session, url, options};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await object.async_open();
        result.bytes.assign(size, '\xee');
        co_await object.async_read_front(host_span{std::span{result.bytes}});
    });
    result.stats = object.stats();
    return result;
}

std::vector<ingest::s3_object> list(http_server const& server, outcome& ended, fetch_options options,
                                    bool anonymous = true)
{
    options.s3.endpoint = server.url("");
    options.s3.anonymous = anonymous;
    std::vector<ingest::s3_object> found;
    world in{transport::copy, {.max_flows = 1}};
    run(in, ended,
        [&]() -> asio::awaitable<void> { found = co_await ingest::async_list_s3("s3://models/llama/", options); });
    return found;
}

void send_page(http_reply& reply, std::string_view objects, std::string_view next)
{
    auto const text = fmt::format(
        "<?xml version=\"1.0\"?><ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{}</IsTruncated>{}{}"
        "</ListBucketResult>",
        !next.empty(), next.empty() ? "" : fmt::format("<NextContinuationToken>{}</NextContinuationToken>", next),
        objects);
    reply.send(fmt::format("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}", text.size(), text));
    reply.close();
}

constexpr std::string_view one_object = "<Contents><Key>llama/a</Key><Size>7</Size><ETag>\"x\"</ETag></Contents>";

// For as long as it lives.
class set_credentials {
  public:
    set_credentials()
    {
        for (auto const& [name, value] : variables)
            ::setenv(name, value, 1);
    }
    set_credentials(set_credentials const&) = delete;
    set_credentials& operator=(set_credentials const&) = delete;
    ~set_credentials()
    {
        for (auto const& [name, value] : variables)
            ::unsetenv(name);
    }

  private:
    static constexpr std::array<std::pair<char const*, char const*>, 3> variables{
        {{"AWS_ACCESS_KEY_ID", "an-id"}, {"AWS_SECRET_ACCESS_KEY", "a-key"}, {"AWS_SESSION_TOKEN", "a-token"}}};
};

// For as long as it lives.
class set_proxy {
  public:
    explicit set_proxy(std::string const& value) { ::setenv("http_proxy", value.c_str(), 1); }
    set_proxy(set_proxy const&) = delete;
    set_proxy& operator=(set_proxy const&) = delete;
    ~set_proxy() { ::unsetenv("http_proxy"); }
};

}  // namespace

TEST_CASE("a signed URL that ends while an object comes is found anew, behind the one that was given")
{
    http_content const object{content_of(200'000)};
    expiring_server behaviour{object, 6};
    http_server server{[&](http_request const& request, http_reply& reply) { behaviour(request, reply); }};
    for (auto const flows : {1U, 3U}) {
        auto options = options_for_tests();
        options.flows = flows;
        options.attempts = 8;
        world in{any_transport(), {.max_flows = 5}};
        auto const result = fetch(in, server.url(), options);
        INFO(result.error);
        CHECK(result.bytes == object.bytes);
        CHECK(result.stats.redirects > 2);
    }
}

TEST_CASE("a read at the front resolves the object again, too")
{
    http_content const object{content_of(100'000)};
    expiring_server behaviour{object, 4};
    http_server server{[&](http_request const& request, http_reply& reply) { behaviour(request, reply); }};
    world in{any_transport(), {.max_flows = 5}};
    auto const result = read_front(in, server.url(), object.bytes.size(), options_for_tests());
    INFO(result.error);
    CHECK(result.bytes == object.bytes);
}

TEST_CASE("a refusal of an object that was resolved again has the server's text")
{
    http_content const object{content_of(200'000)};
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.number == 0)
            return object.serve(request, reply);
        if (request.range && request.range->first == 0 && request.range->second == 0)
            return object.serve(request, reply);
        reply.send(fmt::format("HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\n\r\n{}", expired.size(), expired));
    }};
    auto options = options_for_tests();
    options.flows = 1;
    auto const result = fetch_from(server, options);
    CHECK(result.code == errc::http_status);
    CHECK_THAT(result.error, ContainsSubstring("403 Forbidden: AccessDenied: Request has expired"));
    CHECK(server.requests().size() < 10);
}

TEST_CASE("an object that is another when it is found anew is an error")
{
    expiring_server behaviour{{content_of(200'000)}, 4};
    behaviour.later_etag = "\"two\"";
    http_server server{[&](http_request const& request, http_reply& reply) { behaviour(request, reply); }};
    auto options = options_for_tests();
    options.flows = 1;
    auto const result = fetch_from(server, options);
    CHECK(result.code == errc::object_changed);
    CHECK_THAT(result.error, ContainsSubstring("its ETag was \"one\", and is \"two\""));
}

TEST_CASE("a server that brings a byte per answer is given up at the front, too")
{
    http_content const object{content_of(50'000)};
    http_server server{[&](http_request request, http_reply& reply) {
        request.range->second = request.range->first;
        object.serve(request, reply);
    }};
    world in{any_transport(), {.max_flows = 5}};
    auto const result = read_front(in, server.url(), 1000, options_for_tests());
    CHECK(result.code == errc::gave_up);
    CHECK_THAT(result.error, ContainsSubstring("it sends 1 bytes of those requested; 3 attempts"));
    CHECK(server.requests().size() < 10);
}

TEST_CASE("an error of a header names its object")
{
    http_content const object{std::string("\x02\0\0\0\0\0\0\0[]", 10)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    world in{any_transport(), {.max_flows = 5}};
    outcome result;
    ingest::object file{in.io->get_executor(), *in.session, server.url("/object?token=secret"), options_for_tests()};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await file.async_open();
        static_cast<void>(co_await ingest::async_read_safetensors_header(file));
    });
    CHECK(result.code == errc::bad_safetensors);
    CHECK_THAT(result.error, ContainsSubstring("a safetensors file of " + server.url() + "?token=...: "));
}

TEST_CASE("a listing of pages without an object, each with a new token, comes to an end")
{
    http_server server{[](http_request const& request, http_reply& reply) {
        send_page(reply, "", fmt::format("token{}", request.number));
    }};
    outcome ended;
    static_cast<void>(list(server, ended, {}));
    CHECK(ended.code == errc::bad_response);
    CHECK_THAT(ended.error, ContainsSubstring("pages contain no object") && ContainsSubstring("s3://models/llama/"));
}

TEST_CASE("a listing has a deadline")
{
    http_server server{[](http_request const& request, http_reply& reply) {
        fake_clock::sleep_for(20ms);
        send_page(reply, one_object, fmt::format("token{}", request.number));
    }};
    outcome ended;
    static_cast<void>(list(server, ended, {.deadline = 500ms}));
    CHECK(ended.code == errc::gave_up);
    CHECK_THAT(ended.error, ContainsSubstring("s3://models/llama/"));
}

TEST_CASE("a short rest of a deadline is still a limit")
{
    auto const now = std::chrono::steady_clock::now();
    auto const left = [](std::chrono::milliseconds deadline, std::chrono::steady_clock::time_point began) {
        return ingest::with_rest_of_deadline({.deadline = deadline}, began).deadline;
    };
    CHECK(left(0ms, now - 1h) == 0ms);
    CHECK(left(2h, now - 1h) > 50min);
    CHECK(left(2h, now - 1h) <= 1h);
    CHECK(left(1h, now - 1h) < 0ms);
    CHECK(left(1h, now - 2h) < 0ms);
    CHECK(left(-1ms, now) < 0ms);
}

TEST_CASE("an operation after its deadline sends no request")
{
    http_server server{[](http_request const&, http_reply& reply) { send_page(reply, one_object, {}); }};
    outcome listing;
    static_cast<void>(list(server, listing, {.deadline = -1ms}));
    CHECK(listing.code == errc::gave_up);
    world in{any_transport()};
    for (auto const& url : {server.url(), std::string{"/proc/self/exe"}}) {
        auto options = options_for_tests();
        options.deadline = -1ms;
        ingest::object object{in.io->get_executor(), *in.session, url, options};
        outcome opening;
        run(in, opening, [&]() -> asio::awaitable<void> { co_await object.async_open(); });
        CHECK(opening.code == errc::gave_up);
        CHECK_THAT(opening.error, ContainsSubstring("deadline"));
    }
    CHECK(server.requests().empty());
}

TEST_CASE("a listing waits for a server that is busy as long as a download does")
{
    http_server server{[](http_request const& request, http_reply& reply) {
        if (request.number >= 6)
            return send_page(reply, one_object, "");
        reply.send("HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        reply.close();
    }};
    outcome ended;
    auto const found = list(server, ended, {});
    INFO(ended.error);
    REQUIRE(found.size() == 1);
    CHECK(found[0].url == "s3://models/llama/a");
    CHECK(found[0].size == 7);
}

// As S3 does for a bucket that is elsewhere, and as gateways do.
TEST_CASE("a listing follows redirects, and signs for the bucket's region and for no other server")
{
    set_credentials const signs;
    auto const status = GENERATE(301U, 307U, 308U);
    http_server other{[](http_request const&, http_reply& reply) { send_page(reply, one_object, {}); }};
    auto const leads_away = GENERATE(false, true);
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.text.find("/eu-west-1/s3/") == std::string::npos)
            return reply.send(fmt::format(
                "HTTP/1.1 {} Moved\r\nx-amz-bucket-region: eu-west-1\r\nContent-Length: 0\r\n\r\n", status));
        if (!leads_away)
            return send_page(reply, one_object, {});
        reply.send(fmt::format("HTTP/1.1 {} Moved\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", status,
                               other.url(request.target)));
    }};
    outcome ended;
    auto const found = list(server, ended, {.s3 = {.region = "us-east-1"}}, false);
    CHECK(ended.error.empty());
    CHECK(found.size() == 1);
    auto const first = server.requests();
    REQUIRE(first.size() == 2);
    CHECK(first[0].text.find("/us-east-1/s3/") != std::string::npos);
    CHECK(first[1].target == first[0].target);
    auto const second = other.requests();
    REQUIRE(second.size() == (leads_away ? 1 : 0));
    for (auto const& each : second) {
        CHECK(each.target == first[0].target);
        for (auto const* const secret : {"Authorization", "x-amz-security-token", "a-token", "an-id"})
            CHECK(each.text.find(secret) == std::string::npos);
    }
}

TEST_CASE("a listing in a circle, and one from a region that only the text names, come to an end")
{
    auto const* const location = GENERATE("Location: /\r\n", "");
    http_server server{[&](http_request const& request, http_reply& reply) {
        constexpr std::string_view text = "<Error><Code>PermanentRedirect</Code><Region>eu-west-1</Region></Error>";
        if (request.number == 1 && *location == 0)
            return send_page(reply, one_object, {});
        auto const body = *location == 0 ? text : "";
        reply.send(fmt::format("HTTP/1.1 301 Moved\r\n{}Content-Length: {}\r\n\r\n{}", location, body.size(), body));
    }};
    outcome ended;
    auto const found = list(server, ended, {});
    CHECK(found.size() == (*location == 0 ? 1 : 0));
    CHECK((ended.code == errc::bad_redirect) == (*location != 0));
}

TEST_CASE("an object is found in the region that only the text of a redirect names")
{
    set_credentials const signs;
    http_content const object{content_of(20'000)};
    http_server server{[&](http_request const& request, http_reply& reply) {
        constexpr std::string_view text = "<Error><Code>PermanentRedirect</Code><Region>eu-west-1</Region></Error>";
        if (request.text.find("/eu-west-1/s3/") != std::string::npos)
            return object.serve(request, reply);
        reply.send(fmt::format("HTTP/1.1 301 Moved\r\nContent-Length: {}\r\n\r\n{}", text.size(), text));
    }};
    auto options = options_for_tests();
    options.crc32c = fetch_options::checksum::none;
    options.s3 = {.endpoint = server.url(""), .region = {}, .anonymous = false, .profile = {}};
    world in{any_transport(), {.max_flows = 5}};
    auto const result = fetch(in, "s3://models/key", options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
}

TEST_CASE("a page that a connection does not bring whole is asked for again, and interim answers are none")
{
    auto const brings =
        GENERATE(as<std::string>{}, "", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r\n",
                 "HTTP/1.1 200 OK\r\n\r\n<ListBucketResult><Contents><Key>a</Key><Size>1</Size></Contents>",
                 "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n<ListBucketResult></ListBucketResult>",
                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n<Li");
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.number == 0) {
            reply.send(brings);
            return reply.close();
        }
        reply.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        send_page(reply, one_object, {});
    }};
    outcome ended;
    auto const found = list(server, ended, {});
    INFO(ended.error);
    CHECK(ended.error.empty());
    CHECK(found.size() == 1);
    CHECK(server.requests().size() == 2);
}

TEST_CASE("a listing that no connection ever brings is given up, and is not empty")
{
    http_server server{[](http_request const&, http_reply& reply) { reply.close(); }};
    outcome ended;
    CHECK(list(server, ended, {.attempts = 3}).empty());
    CHECK(ended.code == errc::gave_up);
    CHECK_THAT(ended.error, ContainsSubstring("the connection ended before the answer; 3 attempts"));
}

TEST_CASE("a checkpoint's directory is listed without the directories below it")
{
    auto const knows_delimiters = GENERATE(true, false);
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.target.find("list-type") == std::string::npos)
            return reply.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        constexpr std::string_view own =
            "<Contents><Key>llama/a.safetensors</Key><Size>7</Size></Contents>"
            "<Contents><Key>llama/z.safetensors</Key><Size>7</Size></Contents>";
        // Of a server that knows it, a page has no more.
        if (knows_delimiters && request.target.find("delimiter=%2F") != std::string::npos)
            return send_page(reply, std::string{own} + "<CommonPrefixes><Prefix>llama/b/</Prefix></CommonPrefixes>",
                             {});
        std::string below;
        for (auto i = 0; i < 1000; ++i)
            below += fmt::format("<Contents><Key>llama/b/{}.safetensors</Key><Size>7</Size></Contents>",
                                 request.number * 1000 + i);
        send_page(reply, request.number == 4 ? std::string{own} : below,
                  request.number == 4 ? "" : fmt::format("t{}", request.number));
    }};
    auto options = options_for_tests();
    options.s3 = {.endpoint = server.url(""), .region = {}, .anonymous = true, .profile = {}};
    auto const place = GENERATE("s3://models/llama", "s3://models/llama/");
    outcome ended;
    std::vector<ingest::s3_object> found;
    world in{transport::copy, {.max_flows = 1}};
    run(in, ended,
        [&]() -> asio::awaitable<void> { found = co_await ingest::async_list_s3_directory(place, options); });
    CHECK(ended.error.empty());
    REQUIRE(found.size() == 2);
    CHECK(found[0].url == "s3://models/llama/a.safetensors");
    CHECK(found[1].url == "s3://models/llama/z.safetensors");
    CHECK(server.requests().size() == (knows_delimiters ? 1 : 5));
    if (!knows_delimiters)
        return;
    run(in, ended, [&]() -> asio::awaitable<void> {
        static_cast<void>(
            co_await ingest::async_read_checkpoint(in.io->get_executor(), *in.session, "s3://models/llama/", options));
    });
    CHECK(ended.code == errc::http_status);
    CHECK(server.requests()[1].target == server.requests()[0].target);
}

TEST_CASE("a listing goes through the proxy of the environment")
{
    http_server server{[](http_request const&, http_reply& reply) { send_page(reply, "", ""); }};
    http_server proxy{[](http_request const&, http_reply& reply) { send_page(reply, one_object, ""); }};
    set_proxy const through{fmt::format("127.0.0.1:{}", proxy.port())};
    outcome ended;
    auto const found = list(server, ended, {});
    INFO(ended.error);
    CHECK(found.size() == 1);
    CHECK(server.requests().empty());
    REQUIRE(proxy.requests().size() == 1);
    CHECK(proxy.requests().front().target == server.url("/models?encoding-type=url&list-type=2&prefix=llama%2F"));
}

}  // namespace gpurx::test
