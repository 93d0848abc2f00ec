// SPDX-License-Identifier: Apache-2.0
#include "session/pool_account.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <optional>

using Catch::Matchers::ContainsSubstring;
using gpurx::pool_stats;
using gpurx::detail::describe;
using gpurx::detail::divide;
using namespace std::chrono_literals;

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

TEST_CASE("a pool is described with what is not known said as such")
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
            ContainsSubstring("how long it was dry is not known") &&
            ContainsSubstring("allocation failures are not counted by the driver") &&
            ContainsSubstring("\npages of a <- b: 10 on loan, 20 parked behind GPU streams, 30 in reads") &&
            !ContainsSubstring("c <- d"));
    parts.ring_demand = 128;
    divide(parts, 200);
    parts.dry_time = 1250ms;
    parts.allocation_failures = 7;
    parts.overruns = 0;
    CHECK_THAT(describe(parts),
               ContainsSubstring("128 in the NIC's ring by its size, which wants at least 128, 12 in socket queues") &&
                   ContainsSubstring("dry for 1.2 s") &&
                   ContainsSubstring("7 allocation failures, 0 drops for want of a buffer"));
}
