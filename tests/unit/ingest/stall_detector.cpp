// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <chrono>

#include "net/message.hpp"
#include "net/retry.hpp"
#include "net/stall_detector.hpp"

namespace gpurx::ingest::detail {

using namespace std::chrono_literals;
using verdict = stall_detector::verdict;
using waiting_for = stall_detector::waiting_for;

TEST_CASE("silence is one where something is waited for, for one timeout and no more than an eighth")
{
    stall_detector watched{0};
    for (unsigned i = 0; i < 3 * looks_per_timeout; ++i)
        REQUIRE(watched.look(0, false) == verdict::fine);
    watched.wait_for(waiting_for::body);
    for (unsigned i = 0; i < looks_per_timeout; ++i)
        REQUIRE(watched.look(0, false) == verdict::fine);
    SECTION("the end of it")
    {
        CHECK(watched.look(0, false) == verdict::silent);
    }
    SECTION("a byte")
    {
        for (unsigned i = 0; i <= looks_per_timeout; ++i)
            REQUIRE(watched.look(1, false) == verdict::fine);
        CHECK(watched.look(1, false) == verdict::silent);
    }
    SECTION("bytes that the program has not taken yet")
    {
        for (unsigned i = 0; i < 3 * looks_per_timeout; ++i)
            REQUIRE(watched.look(0, true) == verdict::fine);
    }
}

TEST_CASE("a header has one timeout, however much of it comes meanwhile")
{
    stall_detector watched{0};
    auto const limit = 3U;
    watched.wait_for(waiting_for::header, limit);
    for (unsigned i = 0; i < limit; ++i)
        REQUIRE(watched.look(100 * (i + 1), false) == verdict::fine);
    SECTION("no more")
    {
        CHECK(watched.look(1000, false) == verdict::header_too_slow);
    }
    SECTION("the next one as long")
    {
        watched.wait_for(waiting_for::header);
        for (unsigned i = 0; i < looks_per_timeout; ++i)
            REQUIRE(watched.look(1000, false) == verdict::fine);
        CHECK(watched.look(2000, false) == verdict::header_too_slow);
    }
}

TEST_CASE("a body is measured over one timeout")
{
    stall_detector watched{80};
    watched.wait_for(waiting_for::body);
    std::uint64_t arrived = 0;
    auto const run = [&](unsigned looks, std::uint64_t bytes) {
        auto result = verdict::fine;
        for (unsigned i = 0; i < looks; ++i)
            result = watched.look(arrived += bytes, false);
        return result;
    };
    CHECK(run(looks_per_timeout, 10) == verdict::fine);
    CHECK(run(looks_per_timeout - 1, 9) == verdict::fine);
    CHECK(run(1, 9) == verdict::body_too_slow);
    CHECK(watched.measured() == 72);
    // The look with a byte is the one that tells, of all of the time.
    CHECK(run(looks_per_timeout - 1, 10) == verdict::fine);
    CHECK(run(looks_per_timeout, 0) == verdict::fine);
    CHECK(run(1, 10) == verdict::body_too_slow);
    CHECK(watched.measured() == 40);
    // Pieces of one answer are one body.
    for (unsigned i = 0; i < looks_per_timeout; ++i) {
        watched.wait_for(waiting_for::body);
        REQUIRE(run(1, 10) == verdict::fine);
    }
    CHECK(watched.measured() == 80);
}

TEST_CASE("pauses double up to 20 s, and are never shorter than the server asked for")
{
    CHECK(pause_after(1, 0, {}) == 100ms);
    CHECK(pause_after(2, 0, {}) == 200ms);
    CHECK(pause_after(8, 0, {}) == 12'800ms);
    CHECK(pause_after(9, 0, {}) == 20s);
    CHECK(pause_after(4'000'000'000, 0, {}) == 20s);
    CHECK(pause_after(1, 1, {}) == 80ms);
    CHECK(pause_after(1, 0.5, 3s) == 3s);
    CHECK(pause_after(9, 0, 3s) == 20s);
    // What http.hpp says of 12 attempts, and of 5.
    auto all = 0ms;
    for (unsigned i = 1; i < 12; ++i)
        all += pause_after(i, 0.5, {});
    CHECK((all > 70s && all < 80s));
}

TEST_CASE("a date is read as HTTP writes it, whatever the locale")
{
    using std::chrono::sys_days;
    using namespace std::chrono;
    CHECK(parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT") == sys_days{1994y / November / 6} + 8h + 49min + 37s);
    CHECK(parse_http_date("Thu, 29 Feb 2024 23:59:60 GMT"));
    for (auto const* const wrong :
         {"", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994", "Sun, 06 Nov 1994 08:49:37 CET",
          "Sun, 31 Feb 2026 08:49:37 GMT", "Sun, 06 nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 24:49:37 GMT",
          "Sun, 06 Nov 1994 08-49-37 GMT", "Sun, -6 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:3x GMT"}) {
        INFO(wrong);
        CHECK_FALSE(parse_http_date(wrong));
    }
}

TEST_CASE("Retry-After is seconds, or a date against the server's own clock")
{
    auto const now = *parse_http_date("Sun, 06 Nov 1994 08:50:00 GMT");
    CHECK(parse_retry_after("120", "", now) == 120s);
    CHECK(parse_retry_after("0", "", now) == 0s);
    CHECK(parse_retry_after("Sun, 06 Nov 1994 08:51:00 GMT", "", now) == 60s);
    CHECK(parse_retry_after("Sun, 06 Nov 1994 08:51:00 GMT", "Sun, 06 Nov 1994 08:50:50 GMT", now) == 10s);
    CHECK(parse_retry_after("Sun, 06 Nov 1994 08:00:00 GMT", "", now) == 0s);
    for (auto const* const wrong : {"", "-1", "soon", "1.5", "99999999999"})
        CHECK_FALSE(parse_retry_after(wrong, "", now));
}

TEST_CASE("RateLimit has the time until a used-up quota is available again")
{
    CHECK(parse_rate_limit("\"api\";r=0;t=100") == 100s);
    CHECK(parse_rate_limit("\"a;t=5,r\" ; t=7; r=0") == 7s);
    CHECK(parse_rate_limit("default;r=0;t=0") == 0s);
    CHECK(parse_rate_limit("\"api\";t=9") == 9s);
    CHECK(parse_rate_limit("\"day\";r=0;t=100, \"hour\";r=5;t=900, \"minute\";r=0;t=20") == 100s);
    CHECK(parse_rate_limit("limit=10, remaining=0, reset=50") == 50s);
    CHECK(parse_rate_limit("limit=10,remaining=0,reset=50;w=60") == 50s);
    for (auto const* const none :
         {"", "\"api\"", "\"api\";r=3;t=100", "\"api\";r=0;t=soon", "\"api\";r=0;t=-1", "\"t=5",
          "limit=10, remaining=3, reset=50", "100", ";;,,=", "\"api\";r=0;t=99999999999"})
        CHECK_FALSE(parse_rate_limit(none));
}

}  // namespace gpurx::ingest::detail
