// SPDX-License-Identifier: Apache-2.0
#include "session/pool_state.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <optional>
#include <string>
#include <vector>

using Catch::Matchers::ContainsSubstring;
using gpurx::fragment;
using gpurx::memory_kind;
using gpurx::memory_span;
using gpurx::pool_stats;
using gpurx::detail::describe;
using gpurx::detail::divide;
using gpurx::detail::dry_clock;
using gpurx::detail::lock_up_detector;
using gpurx::detail::lock_up_sample;
using gpurx::detail::page_census;
using gpurx::detail::pages_of_a_segment;
using gpurx::detail::pool_sample;
using gpurx::detail::pool_verdict;
using namespace std::chrono_literals;

TEST_CASE("a page counts once, whoever has a part of it")
{
    constexpr std::uintptr_t base = 1 << 20;
    constexpr auto host = memory_kind::host;
    page_census census{memory_span{host, base, 8 * 4096}, 4096};
    CHECK(census.pages() == 8);
    CHECK(census.note({base, 1, host}) == 1);
    CHECK(census.note({base + 100, 3000, host}) == 0);
    CHECK(census.note({base + 4095, 1, host}) == 0);
    // From one page into the next but one.
    CHECK(census.note({base + 4095, 4098, host}) == 2);
    CHECK(census.note({base + 2 * 4096, 4096, host}) == 0);
    CHECK(census.note({base + 7 * 4096, 4096, host}) == 1);
    CHECK(census.note({base, 8 * 4096, host}) == 4);
    CHECK(census.note({base, 8 * 4096, host}) == 0);
}

TEST_CASE("an address outside the memory is not a page of it")
{
    constexpr std::uintptr_t base = 1 << 20;
    constexpr auto device = memory_kind::device;
    page_census census{memory_span{device, base, 8 * 4096}, 4096};
    CHECK(census.note({base, 4096, memory_kind::host}) == 0);
    CHECK(census.note({base - 4096, 4096, device}) == 0);
    CHECK(census.note({base + 8 * 4096, 4096, device}) == 0);
    CHECK(census.note({base, 0, device}) == 0);
    CHECK(census.note({base + 7 * 4096, 9000, device}) == 1);  // as far as the memory goes
}

namespace {

pool_stats account(std::uint64_t on_loan, std::uint64_t parked, std::uint64_t in_reads)
{
    pool_stats made;
    made.pages = 1024;
    made.page_size = 4096;
    made.on_loan = on_loan;
    made.parked = parked;
    made.in_reads = in_reads;
    return made;
}

}  // namespace

TEST_CASE("the parts of a pool add up, whatever was counted first")
{
    struct row {
        std::uint64_t held;
        std::uint64_t in_flight;
        std::uint64_t free;
        std::optional<std::uint64_t> ring_demand;
        std::uint64_t in_ring;
        std::uint64_t in_queues;
    };
    for (auto const& [held, in_flight, free, ring_demand, in_ring, in_queues] : {
             row{0, 0, 1024, 128, 0, 0},
             row{0, 128, 896, 128, 128, 0},
             row{3, 131, 893, 128, 128, 0},
             row{3, 140, 884, 128, 128, 9},
             // Dry: sockets may have what the ring lacks.
             row{1000, 1024, 0, 128, 24, 0},
             row{300, 1024, 0, 128, 128, 596},
             // The size of the ring is not known.
             row{3, 128, 896, std::nullopt, 0, 125},
             row{300, 1024, 0, 0, 0, 724},
             // The program took some after the kernel was asked: they have left the memory.
             row{300, 200, 724, 128, 0, 0},
             row{1024, 0, 0, 128, 0, 0},
             // Of a pool that was replaced, and whose pages come back just now.
             row{3, 1030, 0, 2000, 1021, 0},
         }) {
        CAPTURE(held, in_flight, ring_demand.value_or(0));
        auto parts = account(held / 3, held / 3, held - 2 * (held / 3));
        parts.ring_demand = ring_demand;
        divide(parts, in_flight);
        CHECK(parts.free == free);
        CHECK(parts.in_ring == in_ring);
        CHECK(parts.in_queues == in_queues);
        CHECK(parts.free + parts.in_ring + parts.in_queues + parts.on_loan + parts.parked + parts.in_reads ==
              parts.pages);
    }
}

TEST_CASE("the text of a pool marks unknown values")
{
    auto parts = account(10, 20, 30);
    divide(parts, 200);
    parts.flows.push_back({.connection = "a <- b", .on_loan = 10, .parked = 20, .in_reads = 30, .in_socket = 5});
    parts.flows.push_back({.connection = "c <- d", .on_loan = 0, .parked = 0, .in_reads = 0, .in_socket = 5});
    parts.high_water = 500;
    CHECK_THAT(
        describe(parts),
        ContainsSubstring("pages: 1024 of 4 KiB: 824 free, 140 in the NIC's ring (whose size is not known), in socket "
                          "queues or kept for the next packet") &&
            ContainsSubstring("10 on loan, 20 parked behind GPU streams, 30 in reads; at most 500") &&
            ContainsSubstring("the time dry is not known") &&
            ContainsSubstring("allocation failures are not counted by the driver") &&
            ContainsSubstring("\npages of a <- b: 10 on loan, 20 parked behind GPU streams, 30 in reads") &&
            !ContainsSubstring("c <- d"));
    parts.ring_demand = 128;
    divide(parts, 200);
    parts.dry_time = 1250ms;
    parts.allocation_failures = 7;
    parts.overruns = 0;
    CHECK_THAT(describe(parts),
               ContainsSubstring("128 in the NIC's ring by its size, which needs at least 128, 12 in socket queues") &&
                   ContainsSubstring("dry for 1.2 s") &&
                   ContainsSubstring("7 allocation failures, 0 drops without a free buffer"));
}

namespace {

dry_clock::time_point at(int milliseconds)
{
    return dry_clock::time_point{std::chrono::milliseconds{milliseconds}};
}

}  // namespace

TEST_CASE("a pool was dry between two looks that found it so, and packets without a page in between")
{
    dry_clock clock;
    clock.look(at(0), true, 3);
    CHECK(clock.total() == 0ms);
    clock.look(at(100), true, 4);
    CHECK(clock.total() == 100ms);
    clock.look(at(150), true, 9);
    CHECK(clock.total() == 150ms);
    SECTION("full, but nobody lacks a page")
    {
        clock.look(at(1000), true, 9);
        CHECK(clock.total() == 150ms);
        clock.look(at(1100), true, 10);
        CHECK(clock.total() == 250ms);
    }
    SECTION("a free page in between")
    {
        clock.look(at(200), false, 20);
        clock.look(at(300), true, 30);
        CHECK(clock.total() == 150ms);
        clock.look(at(301), true, 31);
        CHECK(clock.total() == 151ms);
    }
    SECTION("nobody looked in between")
    {
        clock.pause();
        clock.look(at(10000), true, 100);
        CHECK(clock.total() == 150ms);
    }
    SECTION("a driver whose counts begin anew")
    {
        clock.look(at(200), true, 0);
        CHECK(clock.total() == 150ms);
        clock.look(at(250), true, 1);
        CHECK(clock.total() == 200ms);
    }
}

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

TEST_CASE("observations before a pause do not count")
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
