// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <deque>
#include <random>
#include <vector>

#include "source/fetch_plan.hpp"

namespace gpurx::ingest::detail {

namespace {

using ranges = std::vector<byte_range>;

ranges left_in(fetch_plan const& plan)
{
    return plan.ranges();
}

ranges in(std::deque<byte_range> const& taken)
{
    return {taken.begin(), taken.end()};
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

TEST_CASE("take() returns ranges from the front, up to a size")
{
    fetch_plan plan;
    plan.put({10, 20});
    plan.put({30, 40});
    CHECK(plan.size() == 20);
    CHECK(plan.take(4, 0).asked == byte_range{10, 14});
    CHECK(plan.take(100, 9).asked == byte_range{14, 20});
    CHECK(plan.size() == 10);
    CHECK(plan.take(10, 0).asked == byte_range{30, 40});
    CHECK(plan.empty());
    CHECK(plan.take(1, 1).asked.empty());
}

TEST_CASE("small gaps are asked for along, and not wanted")
{
    fetch_plan plan;
    for (std::uint64_t i = 0; i < 100; i += 10)
        plan.add({i, i + 7});
    plan.add({200, 210});
    auto const first = plan.take(25, 3);
    CHECK(first.asked == byte_range{0, 25});
    CHECK(in(first.wanted) == ranges{{0, 7}, {10, 17}, {20, 25}});
    // Never more than what is wanted at the end.
    auto const second = plan.take(23, 3);
    CHECK(second.asked == byte_range{25, 47});
    CHECK(in(second.wanted) == ranges{{25, 27}, {30, 37}, {40, 47}});
    CHECK(plan.take(10, 2).asked == byte_range{50, 57});
    CHECK(plan.take(UINT64_MAX, 3).asked == byte_range{60, 97});
    CHECK(plan.take(UINT64_MAX, 3).asked == byte_range{200, 210});
    CHECK(plan.size() == 0);
}

TEST_CASE("twenty thousand small tensors with gaps are a few requests")
{
    constexpr std::uint64_t tensors = 20'000;
    fetch_plan plan;
    for (std::uint64_t i = 0; i < tensors; ++i)
        plan.add({i * 8192, i * 8192 + 4000});
    unsigned requests = 0;
    std::uint64_t wanted = 0;
    for (; !plan.empty(); ++requests)
        for (auto const& each : plan.take(8 << 20, 256 << 10).wanted)
            wanted += each.size();
    CHECK(wanted == tensors * 4000);
    CHECK(requests <= 20);
}

TEST_CASE("received or requested ranges are not requested again")
{
    fetch_plan plan;
    plan.add({0, 100});
    plan.add({110, 200});
    CHECK(plan.take(50, 20).asked == byte_range{0, 50});
    CHECK(plan.take(70, 20).asked == byte_range{50, 120});
    // The first comes back after 40 bytes, the second whole, while a third is under way.
    CHECK(plan.take(10, 20).asked == byte_range{120, 130});
    plan.put({40, 50});
    plan.put({50, 100});
    plan.put({110, 120});
    CHECK(plan.take(50, 20).asked == byte_range{40, 90});
    CHECK(plan.take(50, 20).asked == byte_range{90, 120});
    CHECK(plan.take(50, 20).asked == byte_range{130, 180});
    plan.put({45, 90});
    plan.put({115, 120});
    CHECK(plan.take(80, 50).asked == byte_range{45, 90});
    CHECK(plan.take(80, 50).asked == byte_range{115, 120});
    CHECK(plan.take(80, 50).asked == byte_range{180, 200});
}

TEST_CASE("take_within() removes the ranges within a range")
{
    fetch_plan plan;
    plan.put({0, 10});
    plan.put({20, 30});
    plan.put({40, 50});
    CHECK(in(plan.take_within({5, 45})) == ranges{{5, 10}, {20, 30}, {40, 45}});
    CHECK(left_in(plan) == ranges{{0, 5}, {45, 50}});
    CHECK(plan.take_within({5, 45}).empty());
    CHECK(in(plan.take_within({1, 2})) == ranges{{1, 2}});
    CHECK(left_in(plan) == ranges{{0, 1}, {2, 5}, {45, 50}});
}

TEST_CASE("a plan has each byte once after any takes and puts")
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
                auto const taken = random() % 2 == 0 ? plan.take(1 + random() % 50, random() % 9).wanted
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
            REQUIRE(plan.size() == static_cast<std::uint64_t>(std::ranges::count(in_plan, true)));
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
    CHECK(map.find(0, 100) == memory_span{kind, 0x2000, 10});
    CHECK(map.find(9, 100) == memory_span{kind, 0x2009, 1});
    CHECK(map.find(100, 5) == memory_span{kind, 0x1000, 5});
    CHECK(map.find(149, 5) == memory_span{kind, 0x1031, 1});
    CHECK_FALSE(map.assign(places, 149));
    CHECK_FALSE(map.assign(std::vector<placement>{{0, {kind, 1, 10}}, {9, {kind, 100, 1}}}, 100));
    CHECK_FALSE(map.assign(std::vector<placement>{{UINT64_MAX, {kind, 1, 10}}}, UINT64_MAX));
    CHECK(map.assign({}, 0));
}

}  // namespace gpurx::ingest::detail
