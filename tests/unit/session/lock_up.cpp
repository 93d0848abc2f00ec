// SPDX-License-Identifier: Apache-2.0
#include "session/watchdog.hpp"

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

using gpurx::detail::lock_up_detector;
using gpurx::detail::lock_up_sample;
using gpurx::detail::pages_of_a_segment;
using gpurx::detail::pool_sample;
using gpurx::detail::pool_verdict;

namespace {

constexpr std::uint64_t pages = 1024;
constexpr std::size_t page = 4096;

lock_up_sample at(int milliseconds, std::uint64_t on_loan, std::uint64_t delivered, std::uint64_t held,
                  std::optional<pool_sample> pool)
{
    return {.at = std::chrono::steady_clock::time_point{std::chrono::milliseconds{milliseconds}},
            .pages_on_loan = on_loan,
            .bytes_delivered = delivered,
            .bytes_held = held,
            .pool = pool};
}

pool_sample pool(std::uint64_t in_flight, std::optional<std::uint64_t> failures)
{
    return {.in_flight = in_flight, .allocation_failures = failures};
}

constexpr auto moving = pool_verdict::moving;
constexpr auto locked_up = pool_verdict::locked_up;
constexpr auto starved = pool_verdict::starved;

struct scenario {
    std::string name;
    std::vector<lock_up_sample> samples;
    std::vector<pool_verdict> expected;
};

void play(std::vector<scenario> const& scenarios)
{
    for (auto const& [name, samples, expected] : scenarios) {
        INFO(name);
        lock_up_detector detector{std::chrono::milliseconds{1000}, pages, page};
        std::vector<pool_verdict> decisions;
        for (auto const& sample : samples)
            decisions.push_back(detector.judge(sample));
        CHECK(decisions == expected);
    }
}

}  // namespace

TEST_CASE("a lock-up is named after the whole limit, and only then")
{
    auto const uncounted = std::nullopt;
    std::vector<scenario> const scenarios{
        {"all pages in flight, packets dropped for want of one",
         {at(0, 0, 7, 9, pool(1024, 3)), at(999, 0, 7, 9, pool(1024, 4)), at(1000, 0, 7, 9, pool(1024, 5))},
         {moving, moving, locked_up}},
        {"begins anew once named",
         {at(0, 0, 7, 9, pool(1024, 3)), at(1000, 0, 7, 9, pool(1024, 5)), at(1500, 0, 7, 9, pool(1024, 6)),
          at(2400, 0, 7, 9, pool(1024, 7)), at(2500, 0, 7, 9, pool(1024, 8))},
         {moving, locked_up, moving, moving, locked_up}},
        {"fewer pages free than a segment needs",
         {at(0, 0, 7, 9, pool(1008, 3)), at(1000, 0, 7, 9, pool(1008, 5))},
         {moving, locked_up}},
        {"a segment's worth of pages free",
         {at(0, 0, 7, 9, pool(1007, 3)), at(1000, 0, 7, 9, pool(1007, 5)), at(9000, 0, 7, 9, pool(1007, 9))},
         {moving, moving, moving}},
        {"the pool keeps every page for recycling, the sender is idle: nothing behind a hole",
         {at(0, 0, 7, 0, pool(1024, 3)), at(1000, 0, 7, 0, pool(1024, 5)), at(9000, 0, 7, 0, pool(1024, 9))},
         {moving, moving, moving}},
        {"a hole, but no packet found the pool empty: the network is slow",
         {at(0, 0, 7, 9, pool(1024, 3)), at(1000, 0, 7, 9, pool(1024, 3)), at(9000, 0, 7, 9, pool(1024, 3))},
         {moving, moving, moving}},
        {"the retransmission comes late",
         {at(0, 0, 7, 9, pool(1024, 3)), at(1000, 0, 7, 9, pool(1024, 3)), at(9000, 0, 7, 9, pool(1024, 4))},
         {moving, moving, locked_up}},
        {"a loan in the middle begins the time anew",
         {at(0, 0, 7, 9, pool(1024, 3)), at(600, 1, 7, 9, pool(1024, 4)), at(1200, 0, 7, 9, pool(1024, 5)),
          at(2100, 0, 7, 9, pool(1024, 6)), at(2200, 0, 7, 9, pool(1024, 7))},
         {moving, moving, moving, moving, locked_up}},
        {"so do bytes that were delivered",
         {at(0, 0, 7, 9, pool(1024, 3)), at(900, 0, 8, 9, pool(1024, 4)), at(1800, 0, 8, 9, pool(1024, 5)),
          at(1900, 0, 8, 9, pool(1024, 6))},
         {moving, moving, moving, locked_up}},
        {"and a free page",
         {at(0, 0, 7, 9, pool(1024, 3)), at(500, 0, 7, 9, pool(900, 3)), at(1000, 0, 7, 9, pool(1024, 4)),
          at(2000, 0, 7, 9, pool(1024, 5))},
         {moving, moving, moving, locked_up}},
        {"a driver that does not count: no page changed hands",
         {at(0, 0, 7, 9, pool(1024, uncounted)), at(1000, 0, 7, 9, pool(1024, uncounted))},
         {moving, locked_up}},
        {"a driver that does not count: pages change hands",
         {at(0, 0, 7, 9, pool(1024, uncounted)), at(1000, 0, 7, 9, pool(1020, uncounted))},
         {moving, moving}},
        {"the pool is not known",
         {at(0, 0, 7, 9, std::nullopt), at(1000, 0, 7, 9, std::nullopt), at(9000, 0, 7, 9, std::nullopt)},
         {moving, moving, moving}},
    };
    play(scenarios);
}

TEST_CASE("flows that starve because the program holds the pages are named once, until something moves")
{
    auto const uncounted = std::nullopt;
    play({
        {"no page is free, and packets find none",
         {at(0, 5, 7, 0, pool(1024, 3)), at(999, 5, 7, 0, pool(1024, 4)), at(1000, 5, 7, 0, pool(1024, 5)),
          at(2000, 5, 7, 0, pool(1024, 6)), at(9000, 5, 7, 0, pool(1024, 7))},
         {moving, moving, starved, moving, moving}},
        {"again after bytes were delivered",
         {at(0, 5, 7, 0, pool(1024, 3)), at(1000, 5, 7, 0, pool(1024, 5)), at(2000, 5, 8, 0, pool(1024, 6)),
          at(3000, 5, 8, 0, pool(1024, 7))},
         {moving, starved, moving, starved}},
        {"again after a page was free",
         {at(0, 5, 7, 0, pool(1024, 3)), at(1000, 5, 7, 0, pool(1024, 5)), at(1500, 5, 7, 0, pool(900, 5)),
          at(2000, 5, 7, 0, pool(1024, 6)), at(3000, 5, 7, 0, pool(1024, 7))},
         {moving, starved, moving, moving, starved}},
        {"no packet found the pool empty: nobody sends",
         {at(0, 1024, 7, 0, pool(1024, 3)), at(9000, 1024, 7, 0, pool(1024, 3))},
         {moving, moving}},
        {"a driver that does not count, and a program that holds most of the memory",
         {at(0, 600, 7, 0, pool(1024, uncounted)), at(1000, 600, 7, 0, pool(1024, uncounted))},
         {moving, starved}},
        {"a driver that does not count, and a program that holds little: the NIC's ring may have the rest",
         {at(0, 500, 7, 0, pool(1024, uncounted)), at(9000, 500, 7, 0, pool(1024, uncounted))},
         {moving, moving}},
        {"with its last loan gone it is a lock-up, after a time of its own",
         {at(0, 5, 7, 9, pool(1024, 3)), at(1000, 5, 7, 9, pool(1024, 5)), at(1500, 0, 7, 9, pool(1024, 6)),
          at(2400, 0, 7, 9, pool(1024, 7)), at(2500, 0, 7, 9, pool(1024, 8))},
         {moving, starved, moving, moving, locked_up}},
    });
}

TEST_CASE("what was seen before a pause does not count")
{
    lock_up_detector detector{std::chrono::milliseconds{1000}, pages, page};
    CHECK(detector.judge(at(0, 0, 7, 9, pool(1024, 3))) == moving);
    detector.reset();
    CHECK(detector.judge(at(5000, 0, 7, 9, pool(1024, 5))) == moving);
    CHECK(detector.judge(at(6000, 0, 7, 9, pool(1024, 6))) == locked_up);
}

TEST_CASE("no limit is too long to be kept")
{
    for (auto const limit : {std::chrono::milliseconds::max(), std::chrono::milliseconds{std::chrono::years{200}}}) {
        lock_up_detector detector{limit, pages, page};
        CHECK(detector.judge(at(0, 0, 7, 9, pool(1024, 3))) == moving);
        CHECK(detector.judge(at(1'000'000'000, 0, 7, 9, pool(1024, 5))) == moving);
    }
}

TEST_CASE("the pool matters only where something is held or on loan")
{
    CHECK(at(0, 0, 0, 1, {}).needs_pool());
    CHECK(at(0, 1, 0, 0, {}).needs_pool());
    CHECK_FALSE(at(0, 0, 0, 0, {}).needs_pool());
}

TEST_CASE("pages of a large segment")
{
    CHECK(pages_of_a_segment(4096) == 17);
    CHECK(pages_of_a_segment(16384) == 5);
    CHECK(pages_of_a_segment(65536) == 2);
    CHECK(pages_of_a_segment(2 << 20) == 2);
}
