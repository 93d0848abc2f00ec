// SPDX-License-Identifier: Apache-2.0
#include "session/lock_up.hpp"

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

using gpurx::detail::lock_up_detector;
using gpurx::detail::lock_up_sample;
using gpurx::detail::pages_of_a_segment;
using gpurx::detail::pool_sample;

namespace {

constexpr std::uint64_t pages = 1024;
constexpr std::uint64_t slack = 17;

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

struct scenario {
    std::string name;
    std::vector<lock_up_sample> samples;
    std::vector<bool> expected;
};

}  // namespace

TEST_CASE("a lock-up is named after the whole limit, and only then")
{
    using std::chrono::milliseconds;
    auto const uncounted = std::nullopt;
    std::vector<scenario> const scenarios{
        {"all pages in flight, packets dropped for want of one",
         {at(0, 0, 7, 9, pool(1024, 3)), at(999, 0, 7, 9, pool(1024, 4)), at(1000, 0, 7, 9, pool(1024, 5))},
         {false, false, true}},
        {"begins anew once named",
         {at(0, 0, 7, 9, pool(1024, 3)), at(1000, 0, 7, 9, pool(1024, 5)), at(1500, 0, 7, 9, pool(1024, 6)),
          at(2400, 0, 7, 9, pool(1024, 7)), at(2500, 0, 7, 9, pool(1024, 8))},
         {false, true, false, false, true}},
        {"fewer pages free than a segment needs",
         {at(0, 0, 7, 9, pool(1008, 3)), at(1000, 0, 7, 9, pool(1008, 5))},
         {false, true}},
        {"a segment's worth of pages free",
         {at(0, 0, 7, 9, pool(1007, 3)), at(1000, 0, 7, 9, pool(1007, 5)), at(9000, 0, 7, 9, pool(1007, 9))},
         {false, false, false}},
        {"the pool keeps every page for recycling, the sender is idle: nothing behind a hole",
         {at(0, 0, 7, 0, pool(1024, 3)), at(1000, 0, 7, 0, pool(1024, 5)), at(9000, 0, 7, 0, pool(1024, 9))},
         {false, false, false}},
        {"a hole, but no packet found the pool empty: the network is slow",
         {at(0, 0, 7, 9, pool(1024, 3)), at(1000, 0, 7, 9, pool(1024, 3)), at(9000, 0, 7, 9, pool(1024, 3))},
         {false, false, false}},
        {"the retransmission comes late",
         {at(0, 0, 7, 9, pool(1024, 3)), at(1000, 0, 7, 9, pool(1024, 3)), at(9000, 0, 7, 9, pool(1024, 4))},
         {false, false, true}},
        {"a page on loan will come back",
         {at(0, 1, 7, 9, pool(1024, 3)), at(1000, 1, 7, 9, pool(1024, 5))},
         {false, false}},
        {"a loan in the middle begins the time anew",
         {at(0, 0, 7, 9, pool(1024, 3)), at(600, 1, 7, 9, pool(1024, 4)), at(1200, 0, 7, 9, pool(1024, 5)),
          at(2100, 0, 7, 9, pool(1024, 6)), at(2200, 0, 7, 9, pool(1024, 7))},
         {false, false, false, false, true}},
        {"so do bytes that were delivered",
         {at(0, 0, 7, 9, pool(1024, 3)), at(900, 0, 8, 9, pool(1024, 4)), at(1800, 0, 8, 9, pool(1024, 5)),
          at(1900, 0, 8, 9, pool(1024, 6))},
         {false, false, false, true}},
        {"and a free page",
         {at(0, 0, 7, 9, pool(1024, 3)), at(500, 0, 7, 9, pool(900, 3)), at(1000, 0, 7, 9, pool(1024, 4)),
          at(2000, 0, 7, 9, pool(1024, 5))},
         {false, false, false, true}},
        {"a driver that does not count: no page changed hands",
         {at(0, 0, 7, 9, pool(1024, uncounted)), at(1000, 0, 7, 9, pool(1024, uncounted))},
         {false, true}},
        {"a driver that does not count: pages change hands",
         {at(0, 0, 7, 9, pool(1024, uncounted)), at(1000, 0, 7, 9, pool(1020, uncounted))},
         {false, false}},
        {"the pool is not known",
         {at(0, 0, 7, 9, std::nullopt), at(1000, 0, 7, 9, std::nullopt), at(9000, 0, 7, 9, std::nullopt)},
         {false, false, false}},
    };
    for (auto const& [name, samples, expected] : scenarios) {
        INFO(name);
        lock_up_detector detector{milliseconds{1000}, pages, slack};
        std::vector<bool> decisions;
        for (auto const& sample : samples)
            decisions.push_back(detector.locked_up(sample));
        CHECK(decisions == expected);
    }
}

TEST_CASE("what was seen before a pause does not count")
{
    lock_up_detector detector{std::chrono::milliseconds{1000}, pages, slack};
    CHECK_FALSE(detector.locked_up(at(0, 0, 7, 9, pool(1024, 3))));
    detector.reset();
    CHECK_FALSE(detector.locked_up(at(5000, 0, 7, 9, pool(1024, 5))));
    CHECK(detector.locked_up(at(6000, 0, 7, 9, pool(1024, 6))));
}

TEST_CASE("the pool matters only where something is held and nothing is on loan")
{
    CHECK(at(0, 0, 0, 1, {}).needs_pool());
    CHECK_FALSE(at(0, 1, 0, 1, {}).needs_pool());
    CHECK_FALSE(at(0, 0, 0, 0, {}).needs_pool());
}

TEST_CASE("pages of a large segment")
{
    CHECK(pages_of_a_segment(4096) == 17);
    CHECK(pages_of_a_segment(16384) == 5);
    CHECK(pages_of_a_segment(65536) == 2);
    CHECK(pages_of_a_segment(2 << 20) == 2);
}
