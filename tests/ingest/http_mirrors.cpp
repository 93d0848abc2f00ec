// SPDX-License-Identifier: Apache-2.0
//
// An object with several URLs for one object: what one does not bring another does, and none brings what is not the
// object.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <functional>
#include <gpurx/ingest/object.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "http_bed.hpp"

namespace gpurx::test {

namespace {

using Catch::Matchers::ContainsSubstring;
using ingest::errc;
using ingest::fetch_options;

constexpr std::size_t mirrored_size = 200'000;
constexpr std::string_view same_checksum = "x-amz-checksum-crc32c: AAAAAA==\r\nx-amz-checksum-type: FULL_OBJECT\r\n";

struct mirrored : outcome {
    std::vector<ingest::mirror_stats> mirrors;
};

fetch_options mirrored_at(std::string url)
{
    auto options = options_for_tests();
    options.flows = 2;
    options.mirrors = {std::move(url)};
    options.crc32c = fetch_options::checksum::none;
    return options;
}

mirrored fetch_mirrored(world& in, std::string const& url, fetch_options const& options)
{
    mirrored result;
    ingest::object object{in.io->get_executor(), *in.session, url, options};
    run(in, result, [&]() -> asio::awaitable<void> {
        co_await object.async_open();
        result.bytes.assign(object.size(), '\xee');
        ingest::placement const all{0, span_of(result.bytes)};
        co_await object.async_fetch({&all, 1});
    });
    result.stats = object.stats();
    result.mirrors = object.mirrors();
    return result;
}

// How the second of two servers answers, given the object as it is.
using lie = std::function<void(http_content const&, http_request const&, http_reply&)>;

struct mirror_case {
    char const* what;
    lie answers;
    unsigned asked = 1;           // requests that it gets at least
    error_code expected = {};     // none: all bytes come
    std::string_view words = {};  // of the error's text; or why it is not asked any more
    bool brings = false;          // some of the bytes
};

lie that_serves(http_content what)
{
    return [what](http_content const&, http_request const& request, http_reply& reply) { what.serve(request, reply); };
}

void refusing(http_content const&, http_request const&, http_reply& reply)
{
    reply.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
}

void redirecting_once(http_content const& object, http_request const& request, http_reply& reply)
{
    if (request.target == "/object")
        reply.send("HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n");
    else
        object.serve(request, reply);
}

// Well, for the first request.
void reset_later(http_content const& object, http_request const& request, http_reply& reply)
{
    if (request.number == 0)
        object.serve(request, reply);
    else
        reply.reset();
}

void without_ranges(http_content const& object, http_request request, http_reply& reply)
{
    request.range.reset();
    object.serve(request, reply);
}

std::vector<mirror_case> const& mirror_cases()
{
    static std::vector<mirror_case> const all{
        {"the same", that_serves({content_of(mirrored_size)}), 2, {}, {}, true},
        {"behind a redirect", redirecting_once, 3, {}, {}, true},
        {"another ETag, and the same checksum",
         that_serves({content_of(mirrored_size), "\"two\"", std::string{same_checksum}}),
         2,
         {},
         {},
         true},
        {"dead after a while", reset_later, 2},
        {"not there", refusing, 1, {}, "404 Not Found"},
        {"another size", that_serves({content_of(mirrored_size + 1)}), 1, errc::mirrors_differ,
         "it has 200001 bytes there, and 200000 here"},
        {"another ETag", that_serves({content_of(mirrored_size), "\"two\""}), 1, errc::mirrors_differ,
         "its ETag is \"two\" there, and \"one\" here"},
        {"a weak ETag", that_serves({content_of(mirrored_size), "W/\"one\""}), 1, errc::mirrors_differ,
         "its ETag is W/\"one\" there"},
        {"another checksum",
         that_serves({content_of(mirrored_size), "\"one\"",
                      "x-amz-checksum-crc32c: AAAAAQ==\r\nx-amz-checksum-type: FULL_OBJECT\r\n"}),
         1, errc::mirrors_differ, "its CRC32C is 00000001 there, and 00000000 here"},
        {"without ranges", without_ranges, 1, errc::mirrors_differ, "its server serves no ranges"},
    };
    return all;
}

// All but its first request wait for `other` to be asked, so that both have a share.
auto serving_once_asked(http_server& other, http_content const& object)
{
    return [&](http_request const& request, http_reply& reply) {
        if (request.number > 0)
            fake_clock::sleep_until([&] { return other.requests().size() >= 2; });
        object.serve(request, reply);
    };
}

}  // namespace

TEST_CASE("a mirror brings its share of the object, or nothing that is not the object")
{
    world in{any_transport(), {.max_flows = 5}};
    for (auto const& each : mirror_cases()) {
        INFO(each.what);
        http_content const object{content_of(mirrored_size), "\"one\"", std::string{same_checksum}};
        http_server second{
            [&](http_request const& request, http_reply& reply) { each.answers(object, request, reply); }};
        http_server first{[&](http_request const& request, http_reply& reply) {
            // So that the second has its turn before nothing is left.
            if (request.number > 0)
                fake_clock::sleep_until([&] { return second.requests().size() >= each.asked; });
            object.serve(request, reply);
        }};
        auto const result = fetch_mirrored(in, first.url(), mirrored_at(second.url()));
        INFO(result.error);
        CHECK(result.code == each.expected);
        REQUIRE(result.mirrors.size() == 2);
        CHECK(result.mirrors[0].url == first.url());
        CHECK(result.mirrors[1].url == second.url());
        CHECK((result.mirrors[1].bytes_placed > 0) == each.brings);
        if (each.expected) {
            CHECK_THAT(result.error, ContainsSubstring(std::string{each.words}));
            CHECK_THAT(result.error, ContainsSubstring(first.url()));
            CHECK_THAT(result.error, ContainsSubstring(second.url()));
        } else {
            CHECK(result.bytes == object.bytes);
            CHECK_THAT(result.mirrors[1].failure, ContainsSubstring(std::string{each.words}));
            CHECK(result.mirrors[0].bytes_placed + result.mirrors[1].bytes_placed == mirrored_size);
        }
    }
}

TEST_CASE("a dead mirror costs nothing but an attempt")
{
    auto const is_first = GENERATE(false, true);
    http_content const object{content_of(mirrored_size)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    world in{any_transport(), {.max_flows = 5}};
    auto const dead = fmt::format("http://127.0.0.1:{}/object", nobody_there(in).port());
    auto options = mirrored_at(is_first ? server.url() : dead);
    options.attempts = 1;  // no pause would be made
    auto const result = fetch_mirrored(in, is_first ? dead : server.url(), options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(result.mirrors[is_first ? 1 : 0].bytes_placed == mirrored_size);
}

TEST_CASE("a mirror that is far slower than another loses its work to that")
{
    http_content const object{content_of(mirrored_size)};
    std::atomic<bool> over = false;
    std::atomic<bool> slow_began = false;
    http_server slow{[&](http_request const& request, http_reply& reply) {
        if (request.number == 0)
            return object.serve(request, reply);
        reply.send(object.header(request));
        slow_began = true;
        for (auto const& byte : object.body(request)) {
            if (over)
                return;
            reply.send({&byte, 1});
            fake_clock::sleep_for(20ms);
        }
    }};
    http_server fast{[&](http_request const& request, http_reply& reply) {
        if (request.number > 1)
            fake_clock::sleep_until([&] { return slow_began.load(); });
        object.serve(request, reply);
    }};
    world in{any_transport(), {.max_flows = 5}};
    auto options = mirrored_at(slow.url());
    options.min_speed = 0;  // by itself it would do
    fake_clock const clock;
    auto const start = std::chrono::steady_clock::now();
    auto const result = fetch_mirrored(in, fast.url(), options);
    over = true;
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(result.mirrors[1].bytes_placed < 10'000);
    CHECK(std::chrono::steady_clock::now() - start < 60s);  // alone it takes 200 s for its chunk
}

TEST_CASE("a download does not wait for a silent mirror without a range left")
{
    http_content const object{content_of(mirrored_size)};
    std::atomic<bool> asked = false;
    http_server silent{[&](http_request const&, http_reply&) { asked = true; }};
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (request.number > 0)
            fake_clock::sleep_until([&] { return asked.load(); });
        object.serve(request, reply);
    }};
    world in{any_transport(), {.max_flows = 5}};
    auto options = mirrored_at(silent.url());
    options.timeout = 100s;
    fake_clock const clock;
    auto const start = std::chrono::steady_clock::now();
    auto const result = fetch_mirrored(in, server.url(), options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    CHECK(std::chrono::steady_clock::now() - start < 50s);
}

TEST_CASE("servers with the same buckets of S3 are mirrors")
{
    http_content const object{content_of(mirrored_size)};
    auto const is_dead = GENERATE(false, true);
    http_server second{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    http_server first{serving_once_asked(second, object)};
    world in{any_transport(), {.max_flows = 5}};
    auto options = options_for_tests();
    options.flows = 2;
    options.crc32c = fetch_options::checksum::none;
    options.s3.anonymous = true;
    options.s3.endpoint = is_dead ? fmt::format("http://127.0.0.1:{}", nobody_there(in).port()) : first.url("");
    options.s3.more_endpoints = {second.url("")};
    auto const result = fetch_mirrored(in, "s3://bucket/the%20key", options);
    CHECK(result.error.empty());
    CHECK(result.bytes == object.bytes);
    REQUIRE(result.mirrors.size() == 2);
    CHECK(result.mirrors[0].url == "s3://bucket/the%20key");
    CHECK(result.mirrors[1].url == "s3://bucket/the%20key at " + second.url(""));
    CHECK(result.mirrors[1].bytes_placed > 0);
    REQUIRE(!second.requests().empty());
    CHECK_THAT(second.requests().front().target, ContainsSubstring("/bucket/"));
}

TEST_CASE("the error lists the answer of each mirror if all refuse")
{
    http_server first{[](http_request const&, http_reply& reply) {
        reply.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    }};
    http_server second{[](http_request const&, http_reply& reply) {
        reply.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    }};
    world in{any_transport(), {.max_flows = 5}};
    auto const result = fetch_mirrored(in, first.url(), mirrored_at(second.url("/object?token=secret")));
    CHECK(result.code == errc::http_status);
    for (auto const& words : {first.url(), second.url(), std::string{"403 Forbidden"}, std::string{"404 Not Found"}})
        CHECK_THAT(result.error, ContainsSubstring(words));
    CHECK_THAT(result.error, !ContainsSubstring("secret"));
}

TEST_CASE("a token is not for a mirror elsewhere")
{
    http_content const object{content_of(mirrored_size)};
    http_server second{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    http_server first{serving_once_asked(second, object)};
    world in{any_transport(), {.max_flows = 5}};
    auto options = mirrored_at(second.url());
    options.bearer = "the-token";
    options.headers = {{"X-Own", "the-field"}};
    auto const result = fetch_mirrored(in, first.url(), options);
    CHECK(result.bytes == object.bytes);
    for (auto const& request : first.requests())
        CHECK_THAT(request.text, ContainsSubstring("the-token") && ContainsSubstring("the-field"));
    REQUIRE(!second.requests().empty());
    for (auto const& request : second.requests())
        CHECK_THAT(request.text, !ContainsSubstring("the-token") && !ContainsSubstring("the-field"));
}

}  // namespace gpurx::test
