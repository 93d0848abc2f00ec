// SPDX-License-Identifier: Apache-2.0
#include "tap/flow_report.hpp"

#include <boost/json.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace gpurx::doctor::tap;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

segment data(std::uint16_t from, std::uint32_t sequence, std::uint32_t size)
{
    segment made{.source = {.v6 = false, .address = {10, 0, 0, 2}, .port = from},
                 .destination = {.v6 = false, .address = {10, 0, 0, 1}, .port = 5000}};
    made.sequence = sequence;
    made.payload = size;
    return made;
}

}  // namespace

TEST_CASE("the live table has the busiest flows first, at their rate since the last one", "[tap]")
{
    flow_table seen;
    seen.take(data(4001, 1, 1024), false, 1s);
    seen.take(data(4002, 1, 1024), false, 1s);
    auto const earlier = seen.flows();
    seen.take(data(4002, 1025, 4096), false, 2s);
    seen.take(data(4003, 1, 2048), false, 2s);
    auto const text = live("dms0", seen, earlier, 2s, {.packets = 4, .dropped = 0, .odd = 0, .time = 3s}, 2);
    auto const second = text.find("10.0.0.2:4002 -> 10.0.0.1:5000");
    auto const third = text.find("10.0.0.2:4003 -> 10.0.0.1:5000");
    REQUIRE(second != std::string::npos);
    REQUIRE(third != std::string::npos);
    CHECK(second < third);
    CHECK(text.find(":4001") == std::string::npos);
    CHECK_THAT(text, ContainsSubstring("2.0 KiB/s"));
    CHECK_THAT(text, ContainsSubstring("1.0 KiB/s"));
    CHECK_THAT(text, ContainsSubstring("and 1 more"));
    CHECK_THAT(text, ContainsSubstring("dms0: 4 packets of 3 flows in 3.0 s; the tap dropped none"));
}

TEST_CASE("the totals have the tap's drops", "[tap]")
{
    flow_table seen;
    seen.take(data(4001, 1, 1000), false, 1s);
    seen.take(data(4001, 2001, 1000), false, 3s);
    auto const text = totals("dms0", seen, {.packets = 9, .dropped = 7, .odd = 2, .time = 3s});
    CHECK_THAT(text, ContainsSubstring("1000 B/s"));
    CHECK_THAT(text, ContainsSubstring("the tap dropped 7"));
    CHECK_THAT(text, ContainsSubstring("2 packets had no whole TCP header"));
}

TEST_CASE("JSON has all counts", "[tap]")
{
    flow_table seen;
    seen.take(data(4001, 1, 1000), false, 1s);
    seen.take(data(4001, 2001, 1000), false, 2s);
    auto const all = boost::json::parse(json("dms0", seen, {.packets = 2, .dropped = 1, .odd = 0, .time = 3s}));
    CHECK(all.at("dropped").to_number<int>() == 1);
    auto const& flow = all.at("flows").at(0);
    CHECK(flow.at("remote").as_string() == "10.0.0.2:4001");
    CHECK(flow.at("gaps").to_number<int>() == 1);
    CHECK(flow.at("missing").to_number<int>() == 1000);
    CHECK(flow.at("bytes").to_number<int>() == 2000);
}
