// SPDX-License-Identifier: Apache-2.0
#include "tap/arrivals.hpp"

#include <catch2/catch_test_macros.hpp>

using namespace gpurx::doctor::tap;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t size = 1000;

}  // namespace

TEST_CASE("bytes in order, also where the numbers wrap", "[tap]")
{
    arrivals order;
    std::uint32_t sequence = 0xffff'f000;
    for (int i = 0; i < 20; ++i, sequence += size)
        CHECK(order.take(sequence, size, {}, 0s) == arrival::in_order);
    CHECK(order.missing() == 0);
    CHECK(order.take(sequence + size, size, {}, 0s) == arrival::behind_gap);
    CHECK(order.missing() == size);
}

TEST_CASE("what fills a gap is told by the sender's clock", "[tap]")
{
    arrivals order;
    CHECK(order.take(0, size, {.clock = 100, .id = {}}, 0s) == arrival::in_order);
    CHECK(order.take(2000, size, {.clock = 105, .id = {}}, 0s) == arrival::behind_gap);
    SECTION("sent before what came ahead of it")
    {
        CHECK(order.take(1000, size, {.clock = 104, .id = {}}, 1s) == arrival::out_of_order);
    }
    SECTION("sent later")
    {
        CHECK(order.take(1000, size, {.clock = 106, .id = {}}, 1us) == arrival::retransmitted);
    }
    SECTION("at the same time: soon")
    {
        CHECK(order.take(1000, size, {.clock = 105, .id = {}}, 2ms) == arrival::out_of_order);
    }
    SECTION("at the same time: not so soon, where the way is short")
    {
        order.set_round_trip(200us);
        CHECK(order.take(1000, size, {.clock = 105, .id = {}}, 200us) == arrival::retransmitted);
    }
    SECTION("at the same time: soon, where the way is short")
    {
        order.set_round_trip(200us);
        CHECK(order.take(1000, size, {.clock = 105, .id = {}}, 199us) == arrival::out_of_order);
    }
    SECTION("at the same time: late")
    {
        CHECK(order.take(1000, size, {.clock = 105, .id = {}}, 3ms) == arrival::retransmitted);
    }
    CHECK(order.missing() == 0);
    CHECK(order.take(3000, size, {.clock = 107, .id = {}}, 2s) == arrival::in_order);
}

TEST_CASE("where the clock has not gone on, ids tell that count up", "[tap]")
{
    auto const fill = [](std::uint16_t step, std::uint16_t id, moment when) {
        arrivals order;
        std::uint32_t sequence = 0;
        std::uint16_t next = 0xffff;
        for (int i = 0; i < 6; ++i, sequence += size, next = static_cast<std::uint16_t>(next + step))
            CHECK(order.take(sequence, size, {.clock = 7, .id = next}, 0s) == arrival::in_order);
        // The next two are missing.
        CHECK(order.take(sequence + 2 * size, size, {.clock = 7, .id = static_cast<std::uint16_t>(next + 2 * step)},
                         0s) == arrival::behind_gap);
        return order.take(sequence, size, {.clock = 7, .id = static_cast<std::uint16_t>(next + id)}, when);
    };
    CHECK(fill(1, 0, 1s) == arrival::out_of_order);
    CHECK(fill(45, 200, 1us) == arrival::retransmitted);
    // These mean nothing.
    CHECK(fill(0, 0, 1s) == arrival::retransmitted);
    CHECK(fill(0x3333, 0, 1s) == arrival::retransmitted);
    CHECK(fill(0x3333, 0x7fff, 1us) == arrival::out_of_order);
}

TEST_CASE("the sender's clock wraps", "[tap]")
{
    arrivals order;
    CHECK(order.take(0, size, {.clock = 0xffff'fffe, .id = {}}, 0s) == arrival::in_order);
    CHECK(order.take(2000, size, {.clock = 0xffff'ffff, .id = {}}, 0s) == arrival::behind_gap);
    CHECK(order.take(1000, size, {.clock = 3, .id = {}}, 1us) == arrival::retransmitted);
}

TEST_CASE("a gap is filled piece by piece", "[tap]")
{
    arrivals order;
    CHECK(order.take(0, size, {}, 0s) == arrival::in_order);
    CHECK(order.take(4000, size, {}, 0s) == arrival::behind_gap);
    CHECK(order.missing() == 3000);
    CHECK(order.take(2000, size, {}, 1ms) == arrival::out_of_order);
    CHECK(order.missing() == 2000);
    CHECK(order.take(2000, size, {}, 1ms) == arrival::retransmitted);
    CHECK(order.missing() == 2000);
    CHECK(order.take(1000, 3500, {}, 1s) == arrival::retransmitted);
    CHECK(order.missing() == 0);
}

TEST_CASE("what came before is a retransmission, also with new bytes behind it", "[tap]")
{
    arrivals order;
    CHECK(order.take(0, size, {}, 0s) == arrival::in_order);
    CHECK(order.take(0, size, {}, 0s) == arrival::retransmitted);
    CHECK(order.take(500, size, {}, 0s) == arrival::retransmitted);
    CHECK(order.take(1500, size, {}, 0s) == arrival::in_order);
}

TEST_CASE("questions whether this end is there, and what was before the beginning, are no retransmissions", "[tap]")
{
    arrivals order;
    CHECK(order.take(5000, size, {}, 0s) == arrival::in_order);
    CHECK(order.take(5999, 1, {}, 0s) == arrival::in_order);
    CHECK(order.take(5999, 0, {}, 0s) == arrival::in_order);
    CHECK(order.take(4000, size, {}, 0s) == arrival::in_order);
}

TEST_CASE("gaps that the receiver does not have are the tap's", "[tap]")
{
    arrivals order;
    CHECK(order.acknowledged(77) == 0);
    CHECK(order.take(0, size, {}, 0s) == arrival::in_order);
    CHECK(order.take(2000, size, {}, 0s) == arrival::behind_gap);
    CHECK(order.take(4000, size, {}, 0s) == arrival::behind_gap);
    CHECK(order.acknowledged(1000) == 0);
    CHECK(order.acknowledged(3000) == 1);
    CHECK(order.missing() == 1000);
    // Ahead of all that was seen.
    CHECK(order.acknowledged(9000) == 2);
    CHECK(order.missing() == 0);
    CHECK(order.take(9000, size, {}, 0s) == arrival::in_order);
}

TEST_CASE("gaps are forgotten when there are many", "[tap]")
{
    arrivals order;
    CHECK(order.take(0, 1, {}, 0s) == arrival::in_order);
    for (std::uint32_t i = 1; i <= 1000; ++i)
        CHECK(order.take(2 * i, 1, {}, 0s) == arrival::behind_gap);
    CHECK(order.missing() == 64);
}
