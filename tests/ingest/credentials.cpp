// SPDX-License-Identifier: Apache-2.0
//
// Credentials that a function of the program supplies: who gets them, and how often it runs.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <latch>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "eventually.hpp"
#include "http_bed.hpp"

namespace gpurx::test {

using Catch::Matchers::ContainsSubstring;
using ingest::credential_source;
using ingest::request_credentials;

namespace {

request_credentials token(std::string const& text)
{
    return {.headers = {{"authorization", "Bearer " + text}, {"x-ms-version", "2024-11-04"}}};
}

// Counts its calls: the first result has 1, and so on.
std::shared_ptr<credential_source> counted(std::atomic<unsigned>& calls, std::vector<std::string>* schemes = nullptr)
{
    return std::make_shared<credential_source>([&calls, schemes](std::string_view scheme) {
        if (schemes != nullptr)
            schemes->emplace_back(scheme);
        return token(fmt::format("t{}", ++calls));
    });
}

ingest::fetch_options options_with(std::shared_ptr<credential_source> credentials)
{
    auto options = options_for_tests();
    options.credentials = std::move(credentials);
    return options;
}

bool has(http_request const& request, std::string_view text)
{
    return request.text.find(text) != std::string::npos;
}

std::string refusal(std::string_view status)
{
    return fmt::format("HTTP/1.1 {}\r\nContent-Length: 0\r\n\r\n", status);
}

std::string failure_of(credential_source& source)
{
    try {
        static_cast<void>(source.get("https"));
    } catch (system_error const& error) {
        CHECK(error.code() == ingest::errc::no_credentials);
        CHECK_THAT(error.what(), !ContainsSubstring("hidden"));
        return error.what();
    }
    return {};
}

}  // namespace

TEST_CASE("the function that supplies credentials runs once for all connections")
{
    http_content const object{content_of(200'000)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    std::atomic<unsigned> calls = 0;
    std::vector<std::string> schemes;
    auto options = options_with(counted(calls, &schemes));
    options.headers = {{"Authorization", "Bearer old"}, {"X-Own", "kept"}};
    for (auto repeats = 0; repeats < 2; ++repeats) {
        auto const result = fetch_from(server, options);
        INFO(result.error);
        CHECK(result.bytes == object.bytes);
        CHECK(result.stats.connections > 1);
    }
    CHECK(schemes == std::vector<std::string>{"http"});
    for (auto const& each : server.requests())
        CHECK((has(each, "authorization: Bearer t1\r\n") && has(each, "X-Own: kept") && !has(each, "old")));
}

TEST_CASE("neither a mirror nor the target of a redirect gets supplied credentials")
{
    http_content const object{content_of(500'000)};
    std::atomic<bool> mirror_is_asked = true;
    http_server other{[&](http_request const& request, http_reply& reply) {
        mirror_is_asked = true;
        object.serve(request, reply);
    }};
    http_server first{[&](http_request const& request, http_reply& reply) {
        if (request.target == "/object") {
            // More chunks than its connections ask for at once: the mirror has some.
            if (request.range && request.range->first > 0)
                static_cast<void>(eventually([&] { return mirror_is_asked.load(); }));
            return object.serve(request, reply);
        }
        reply.send(fmt::format("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", other.url()));
    }};
    std::atomic<unsigned> calls = 0;
    auto options = options_with(counted(calls));
    world in{any_transport(), {.max_flows = 5}};
    CHECK(fetch(in, first.url("/elsewhere"), options).bytes == object.bytes);
    options.mirrors = {other.url()};
    mirror_is_asked = false;
    CHECK(fetch(in, first.url("/object"), options).bytes == object.bytes);
    options.mirrors = {"s3://bucket/key"};
    options.s3.endpoint = other.url("");
    options.s3.anonymous = true;
    mirror_is_asked = false;
    CHECK(fetch(in, first.url("/object"), options).bytes == object.bytes);
    options.mirrors.clear();
    options.s3 = {.endpoint = first.url("")};
    for (auto const* const url : {"s3://bucket/key", "gs://bucket/key"})
        CHECK(fetch(in, url, options).bytes == object.bytes);
    CHECK(std::ranges::all_of(first.requests(), [](auto const& each) { return has(each, "Bearer t"); }));
    auto const elsewhere = other.requests();
    CHECK(std::ranges::any_of(elsewhere, [](auto const& each) { return each.target == "/bucket/key"; }));
    CHECK(std::ranges::none_of(elsewhere, [](auto const& each) { return has(each, "Bearer"); }));
}

TEST_CASE("supplied credentials that a server refuses are replaced once")
{
    http_content const object{content_of(50'000)};
    std::string accepted = "Bearer t2";
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (has(request, accepted))
            return object.serve(request, reply);
        reply.send(refusal("401 Unauthorized"));
    }};
    std::atomic<unsigned> calls = 0;
    CHECK(fetch_from(server, options_with(counted(calls))).bytes == object.bytes);
    CHECK(calls == 2);
    accepted = "none";
    auto const result = fetch_from(server, options_with(counted(calls)));
    CHECK(result.code == ingest::errc::http_status);
    CHECK_THAT(result.error, ContainsSubstring("401"));
    CHECK(calls == 4);
}

TEST_CASE("supplied keys sign requests to S3, and supplied fields replace a signature")
{
    http_content const object{content_of(50'000)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    auto const keys = std::make_shared<credential_source>([](std::string_view scheme) {
        return request_credentials{
            .access_key = "of-" + std::string{scheme}, .secret_key = "hidden", .session_token = "session"};
    });
    std::atomic<unsigned> calls = 0;
    for (auto const& each : {keys, counted(calls)}) {
        auto options = options_with(each);
        options.s3.endpoint = server.url("");
        world in{any_transport(), {.max_flows = 5}};
        CHECK(fetch(in, "s3://bucket/key", options).bytes == object.bytes);
    }
    for (auto const& each : server.requests()) {
        CHECK((has(each, "Credential=of-s3/") ? has(each, "x-amz-security-token: session") : has(each, "Bearer t1")));
        CHECK_FALSE(has(each, "hidden"));
    }
    auto const result = fetch_from(server, options_with(keys));
    CHECK(result.code == ingest::errc::no_credentials);
    CHECK_THAT(result.error, ContainsSubstring("keys of S3"));
}

TEST_CASE("credentials of last resort are used only where the library finds none")
{
    http_content const object{content_of(50'000)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    set_variable const no_config{"AWS_CONFIG_FILE", "/dev/null"};
    set_variable const no_file{"AWS_SHARED_CREDENTIALS_FILE", "/dev/null"};
    set_variable const no_instance{"AWS_EC2_METADATA_DISABLED", "true"};
    std::atomic<unsigned> calls = 0;
    auto options = options_for_tests();
    options.s3.endpoint = server.url("");
    options.fallback_credentials = counted(calls);
    world in{any_transport(), {.max_flows = 5}};
    CHECK(fetch(in, "s3://bucket/key", options).bytes == object.bytes);
    CHECK(calls == 1);
    options.fallback_credentials =
        std::make_shared<credential_source>([](std::string_view) { return request_credentials{}; });
    CHECK(fetch(in, "s3://bucket/key", options).code == ingest::errc::no_credentials);
    options.fallback_credentials = std::make_shared<credential_source>(
        [](std::string_view) -> request_credentials { throw std::runtime_error{"sign in first"}; });
    CHECK_THAT(fetch(in, "s3://bucket/key", options).error,
               ContainsSubstring("neither the environment nor a profile") && ContainsSubstring("sign in first"));
    set_variable const id{"AWS_ACCESS_KEY_ID", "own"};
    set_variable const key{"AWS_SECRET_ACCESS_KEY", "own"};
    options.fallback_credentials = counted(calls);
    CHECK(fetch(in, "s3://bucket/key", options).bytes == object.bytes);
    CHECK(calls == 1);
}

TEST_CASE("threads that need credentials at the same time share one call")
{
    constexpr auto count = 8;
    std::latch all{count};
    std::atomic<unsigned> calls = 0;
    credential_source source{[&](std::string_view) {
        all.wait();
        return token(fmt::format("t{}", ++calls));
    }};
    std::vector<std::thread> threads;
    for (auto i = 0; i < count; ++i)
        threads.emplace_back([&] {
            all.count_down();
            static_cast<void>(source.get("https"));
        });
    for (auto& each : threads)
        each.join();
    CHECK(calls == 1);
    CHECK(source.get("https") == token("t1"));
    CHECK(source.get("s3") == token("t2"));
}

TEST_CASE("credentials are renewed before they end, and last until then if that fails")
{
    auto const begin = std::chrono::system_clock::now();
    auto lifetime = 60min;
    auto now = begin;
    auto fails = false;
    unsigned calls = 0;
    credential_source source{[&](std::string_view) {
        ++calls;
        if (fails)
            throw std::runtime_error{"the vault is sealed"};
        auto found = token(fmt::format("t{}", calls));
        found.expires = now + lifetime;
        return found;
    }};
    auto const calls_at = [&](std::chrono::minutes later) {
        now = begin + later;
        static_cast<void>(source.get("https", now));
        return calls;
    };
    CHECK(calls_at(0min) == 1);
    CHECK(calls_at(54min) == 1);
    CHECK(calls_at(55min) == 2);
    lifetime = 4min;
    CHECK(calls_at(110min) == 3);
    CHECK(calls_at(111min) == 3);
    CHECK(calls_at(112min) == 4);
    fails = true;
    CHECK(calls_at(115min) == 5);
    CHECK_THROWS_AS(calls_at(116min), system_error);
}

TEST_CASE("a function that supplies no usable credentials is named, without its secrets")
{
    auto const source = [](request_credentials const& found) {
        return credential_source{[found](std::string_view) { return found; }};
    };
    struct one {
        request_credentials found;
        char const* why;
    };
    std::vector<one> const all{
        {{.access_key = "id"}, "without a secret key"},
        {{.access_key = "id\nhidden", .secret_key = "hidden"}, "cannot be sent"},
        {{.access_key = "id", .secret_key = "hidden", .headers = {{"A", "b"}}}, "one of them"},
        {{.headers = {{"Authorization", "hidden\r\nX: y"}}}, "\"Authorization\""},
        {{.headers = {{"Host", "hidden"}}}, "the library sets Host"},
    };
    for (auto const& [found, why] : all) {
        auto from = source(found);
        CHECK_THAT(failure_of(from), ContainsSubstring(why));
    }
    credential_source failing{[](std::string_view) -> request_credentials { throw std::runtime_error{"sealed"}; }};
    CHECK_THAT(failure_of(failing),
               ContainsSubstring("the function that supplies credentials") && ContainsSubstring("sealed"));
    std::atomic<unsigned> calls = 0;
    http_server server{[&](http_request const&, http_reply&) { ++calls; }};
    auto const nothing = std::make_shared<credential_source>([](std::string_view) { return request_credentials{}; });
    auto const result = fetch_from(server, options_with(nothing));
    CHECK(result.code == ingest::errc::no_credentials);
    CHECK(calls == 0);
}

}  // namespace gpurx::test
