// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <random>
#include <vector>

#include "http/fetch_plan.hpp"

namespace gpurx::ingest::detail {

namespace {

using ranges = std::vector<byte_range>;

ranges left_in(fetch_plan const& plan)
{
    return {plan.ranges().begin(), plan.ranges().end()};
}

}  // namespace

TEST_CASE("ranges that touch become one")
{
    fetch_plan plan;
    CHECK(plan.empty());
    plan.put({10, 20});
    plan.put({30, 40});
    plan.put({5, 5});
    CHECK(left_in(plan) == ranges{{10, 20}, {30, 40}});
    plan.put({20, 30});
    CHECK(left_in(plan) == ranges{{10, 40}});
    plan.put({0, 10});
    plan.put({50, 60});
    plan.put({40, 45});
    CHECK(left_in(plan) == ranges{{0, 45}, {50, 60}});
}

TEST_CASE("what is taken comes from the front, at most so much")
{
    fetch_plan plan;
    plan.put({10, 20});
    plan.put({30, 40});
    CHECK(plan.take(4) == byte_range{10, 14});
    CHECK(plan.take(100) == byte_range{14, 20});
    CHECK(plan.take(10) == byte_range{30, 40});
    CHECK(plan.empty());
    CHECK(plan.take(1).empty());
}

TEST_CASE("what lies within a range leaves the plan")
{
    fetch_plan plan;
    plan.put({0, 10});
    plan.put({20, 30});
    plan.put({40, 50});
    CHECK(plan.take_within({5, 45}) == ranges{{5, 10}, {20, 30}, {40, 45}});
    CHECK(left_in(plan) == ranges{{0, 5}, {45, 50}});
    CHECK(plan.take_within({5, 45}).empty());
    CHECK(plan.take_within({1, 2}) == ranges{{1, 2}});
    CHECK(left_in(plan) == ranges{{0, 1}, {2, 5}, {45, 50}});
}

TEST_CASE("whatever is taken and put back, a plan has each byte once")
{
    std::mt19937 random{1};
    constexpr std::uint64_t size = 200;
    for (int round = 0; round < 300; ++round) {
        std::vector<bool> in_plan(size);
        fetch_plan plan;
        ranges out{{0, size}};
        for (int step = 0; step < 60; ++step) {
            if (!out.empty() && random() % 2 == 0) {
                auto const which = static_cast<std::ptrdiff_t>(random() % out.size());
                auto range = out[static_cast<std::size_t>(which)];
                out.erase(out.begin() + which);
                // A part of it has been brought, the rest goes back.
                auto const begin = range.begin + random() % (range.size() + 1) / 2;
                plan.put({begin, range.end});
                for (auto i = begin; i < range.end; ++i)
                    in_plan[i] = true;
            } else {
                auto const begin = random() % size;
                auto taken = random() % 2 == 0 ? ranges{plan.take(1 + random() % 50)}
                                               : plan.take_within({begin, begin + random() % 60});
                for (auto const& range : taken) {
                    if (range.empty())
                        continue;
                    out.push_back(range);
                    for (auto i = range.begin; i < range.end; ++i) {
                        REQUIRE(in_plan[i]);
                        in_plan[i] = false;
                    }
                }
            }
            std::vector<bool> said(size);
            std::uint64_t end = 0;
            for (auto const& range : plan.ranges()) {
                REQUIRE((range.begin > end || (end == 0 && range.begin == 0)));
                REQUIRE_FALSE(range.empty());
                for (auto i = range.begin; i < range.end; ++i)
                    said[i] = true;
                end = range.end;
            }
            REQUIRE(said == in_plan);
        }
    }
}

TEST_CASE("a place is found for each byte that has one")
{
    constexpr auto kind = memory_kind::host;
    std::vector<placement> const places{{100, {kind, 0x1000, 50}}, {0, {kind, 0x2000, 10}}, {10, {kind, 0x3000, 0}}};
    placement_map map;
    REQUIRE(map.assign(places, 150));
    CHECK(map.all().size() == 2);
    CHECK(map.find(0, 100) == device_span{kind, 0x2000, 10});
    CHECK(map.find(9, 100) == device_span{kind, 0x2009, 1});
    CHECK(map.find(100, 5) == device_span{kind, 0x1000, 5});
    CHECK(map.find(149, 5) == device_span{kind, 0x1031, 1});
    CHECK_FALSE(map.assign(places, 149));
    CHECK_FALSE(map.assign(std::vector<placement>{{0, {kind, 1, 10}}, {9, {kind, 100, 1}}}, 100));
    CHECK_FALSE(map.assign(std::vector<placement>{{UINT64_MAX, {kind, 1, 10}}}, UINT64_MAX));
    CHECK(map.assign({}, 0));
}

}  // namespace gpurx::ingest::detail
