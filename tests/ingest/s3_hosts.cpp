// SPDX-License-Identifier: Apache-2.0
//
// Objects of S3 behind hosts that answer a HEAD in their own way.
#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <climits>
#include <string>

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

}  // namespace gpurx::test
