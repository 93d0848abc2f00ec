// SPDX-License-Identifier: Apache-2.0
//
// Objects of S3 behind hosts that answer a HEAD in their own way, and credentials of an agent that fails for a moment.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <string>
#include <string_view>

#include "http_bed.hpp"

namespace gpurx::test {

namespace {

using ingest::fetch_options;

fetch_options options_of(http_server const& server)
{
    auto options = options_for_tests();
    options.s3.endpoint = server.url("");
    options.s3.anonymous = true;
    return options;
}

// The agent of a container, for as long as it lives.
class set_agent {
  public:
    explicit set_agent(std::string const& url)
    {
        ::setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null", 1);
        ::setenv("AWS_CONFIG_FILE", "/dev/null", 1);
        ::setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.c_str(), 1);
    }
    set_agent(set_agent const&) = delete;
    set_agent& operator=(set_agent const&) = delete;
    ~set_agent()
    {
        for (auto const* const each :
             {"AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"})
            ::unsetenv(each);
    }
};

bool is_head(http_request const& request)
{
    return request.text.starts_with("HEAD ");
}

}  // namespace

TEST_CASE(
    "a host that answers a HEAD in its own way costs a part of a timeout once, and the checksum of a HEAD still counts")
{
    enum class manner { drops_the_next, ends, has_body };
    auto const how = GENERATE(manner::drops_the_next, manner::ends, manner::has_body);
    http_content object{content_of(50'000)};
    object.fields = "x-amz-checksum-crc32c: AAAAAA==\r\n";  // a wrong one
    http_content without = object;
    without.fields = {};
    std::atomic<unsigned> deaf = UINT_MAX;  // a connection
    http_server server{[&](http_request const& request, http_reply& reply) {
        if (deaf == request.connection)
            return;
        if (!is_head(request))
            return without.serve(request, reply);
        fake_clock::sleep_for(20ms);  // the next request is there by then
        reply.send(object.header(request));
        if (how == manner::has_body)
            reply.send(object.body(request));
        else if (how == manner::ends)
            reply.close();
        else if (reply.another_waits())
            deaf = request.connection;
    }};
    world in{any_transport(), {.max_flows = 5}};
    for (auto const limit : {8s, 1s}) {  // looked at each eighth of 30 s
        fake_clock const clock;
        auto const start = std::chrono::steady_clock::now();
        auto const result = fetch(in, "s3://bucket/key", options_of(server));
        CHECK(std::chrono::steady_clock::now() - start < limit);
        CHECK(result.code == ingest::errc::wrong_checksum);
        CHECK(result.bytes == object.bytes);
        CHECK(result.stats.retries == 0);
    }
    auto const requests = server.requests();
    CHECK(std::ranges::count_if(requests, is_head) == 2);
}

TEST_CASE("credentials come from an agent that fails for a moment, and not from one that refuses")
{
    enum class failure { status_500, status_429, status_503, reset, silence, status_403 };
    auto const how = GENERATE(failure::status_500, failure::status_429, failure::status_503, failure::reset,
                              failure::silence, failure::status_403);
    std::string_view const document =
        "{\"AccessKeyId\": \"of-the-agent\", \"SecretAccessKey\": \"secret\", \"Token\": \"t\", "
        "\"Expiration\": \"2999-01-01T00:00:00Z\"}";
    http_server agent{[&](http_request const& request, http_reply& reply) {
        auto const refuse = [&](std::string_view status) {
            reply.send(fmt::format("HTTP/1.1 {} No\r\nContent-Length: 0\r\n\r\n", status));
        };
        if (request.number > 0)
            return reply.send(
                fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", document.size(), document));
        switch (how) {
            case failure::status_500:
                return refuse("500");
            case failure::status_429:
                return refuse("429");
            case failure::status_503:
                return refuse("503");
            case failure::status_403:
                return refuse("403");
            case failure::reset:
                return reply.reset();
            case failure::silence:
                return;
        }
    }};
    set_agent const by{agent.url("/credentials")};
    http_content const object{content_of(50'000)};
    http_server server{[&](http_request const& request, http_reply& reply) { object.serve(request, reply); }};
    auto options = options_of(server);
    options.s3.anonymous = false;
    options.crc32c = fetch_options::checksum::none;
    world in{transport::copy, {.max_flows = 5}};
    auto const result = fetch(in, "s3://bucket/key", options);
    INFO(result.error);
    if (how == failure::status_403) {
        CHECK(result.code == ingest::errc::no_credentials);
        CHECK(agent.requests().size() == 1);
        return;
    }
    CHECK(result.bytes == object.bytes);
    CHECK(agent.requests().size() == 2);
    REQUIRE_FALSE(server.requests().empty());
    CHECK(server.requests().front().text.find("of-the-agent") != std::string::npos);
}

}  // namespace gpurx::test
