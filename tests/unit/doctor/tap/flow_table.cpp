// SPDX-License-Identifier: Apache-2.0
#include "tap/flow_table.hpp"

#include <catch2/catch_test_macros.hpp>

using namespace gpurx::doctor::tap;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t segment_size = 1000;
socket_end const here{.v6 = false, .address = {10, 0, 0, 1}, .port = 5000};
socket_end const there{.v6 = false, .address = {10, 0, 0, 2}, .port = 4000};

segment data(std::uint32_t sequence, std::uint32_t size, bool readable = false)
{
    segment made{.source = there, .destination = here};
    made.sequence = sequence;
    made.ack = true;
    made.payload = size;
    made.readable = readable;
    return made;
}

segment answer(std::uint32_t acknowledgement, std::uint16_t window)
{
    segment made{.source = here, .destination = there};
    made.ack = true;
    made.acknowledgement = acknowledgement;
    made.window = window;
    return made;
}

flow_counts const& only(flow_table const& seen)
{
    REQUIRE(seen.flows().size() == 1);
    CHECK(seen.flows().begin()->first == flow_key{here, there});
    return seen.flows().begin()->second;
}

}  // namespace

TEST_CASE("bytes in order, also where the numbers wrap", "[tap]")
{
    sequence_tracker order;
    std::uint32_t sequence = 0xffff'f000;
    for (int i = 0; i < 20; ++i, sequence += segment_size)
        CHECK(order.take(sequence, segment_size, {}, 0s) == arrival::in_order);
    CHECK(order.missing() == 0);
    CHECK(order.take(sequence + segment_size, segment_size, {}, 0s) == arrival::behind_gap);
    CHECK(order.missing() == segment_size);
}

TEST_CASE("the sender's clock tells how a gap was filled", "[tap]")
{
    sequence_tracker order;
    CHECK(order.take(0, segment_size, {.clock = 100, .id = {}}, 0s) == arrival::in_order);
    CHECK(order.take(2000, segment_size, {.clock = 105, .id = {}}, 0s) == arrival::behind_gap);
    SECTION("sent before what came ahead of it")
    {
        CHECK(order.take(1000, segment_size, {.clock = 104, .id = {}}, 1s) == arrival::out_of_order);
    }
    SECTION("sent later")
    {
        CHECK(order.take(1000, segment_size, {.clock = 106, .id = {}}, 1us) == arrival::retransmitted);
    }
    SECTION("at the same time: soon")
    {
        CHECK(order.take(1000, segment_size, {.clock = 105, .id = {}}, 2ms) == arrival::out_of_order);
    }
    SECTION("at the same time: not so soon, where the way is short")
    {
        order.set_round_trip(200us);
        CHECK(order.take(1000, segment_size, {.clock = 105, .id = {}}, 200us) == arrival::retransmitted);
    }
    SECTION("at the same time: soon, where the way is short")
    {
        order.set_round_trip(200us);
        CHECK(order.take(1000, segment_size, {.clock = 105, .id = {}}, 199us) == arrival::out_of_order);
    }
    SECTION("at the same time: late")
    {
        CHECK(order.take(1000, segment_size, {.clock = 105, .id = {}}, 3ms) == arrival::retransmitted);
    }
    CHECK(order.missing() == 0);
    CHECK(order.take(3000, segment_size, {.clock = 107, .id = {}}, 2s) == arrival::in_order);
}

TEST_CASE("ids that count up tell it if the clock has not gone on", "[tap]")
{
    auto const fill = [](std::uint16_t step, std::uint16_t id, moment when) {
        sequence_tracker order;
        std::uint32_t sequence = 0;
        std::uint16_t next = 0xffff;
        for (int i = 0; i < 6; ++i, sequence += segment_size, next = static_cast<std::uint16_t>(next + step))
            CHECK(order.take(sequence, segment_size, {.clock = 7, .id = next}, 0s) == arrival::in_order);
        // The next two are missing.
        CHECK(order.take(sequence + 2 * segment_size, segment_size,
                         {.clock = 7, .id = static_cast<std::uint16_t>(next + 2 * step)}, 0s) == arrival::behind_gap);
        return order.take(sequence, segment_size, {.clock = 7, .id = static_cast<std::uint16_t>(next + id)}, when);
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
    sequence_tracker order;
    CHECK(order.take(0, segment_size, {.clock = 0xffff'fffe, .id = {}}, 0s) == arrival::in_order);
    CHECK(order.take(2000, segment_size, {.clock = 0xffff'ffff, .id = {}}, 0s) == arrival::behind_gap);
    CHECK(order.take(1000, segment_size, {.clock = 3, .id = {}}, 1us) == arrival::retransmitted);
}

TEST_CASE("a gap is filled piece by piece", "[tap]")
{
    sequence_tracker order;
    CHECK(order.take(0, segment_size, {}, 0s) == arrival::in_order);
    CHECK(order.take(4000, segment_size, {}, 0s) == arrival::behind_gap);
    CHECK(order.missing() == 3000);
    CHECK(order.take(2000, segment_size, {}, 1ms) == arrival::out_of_order);
    CHECK(order.missing() == 2000);
    CHECK(order.take(2000, segment_size, {}, 1ms) == arrival::retransmitted);
    CHECK(order.missing() == 2000);
    CHECK(order.take(1000, 3500, {}, 1s) == arrival::retransmitted);
    CHECK(order.missing() == 0);
}

TEST_CASE("bytes that came before are a retransmission, also with new bytes behind them", "[tap]")
{
    sequence_tracker order;
    CHECK(order.take(0, segment_size, {}, 0s) == arrival::in_order);
    CHECK(order.take(0, segment_size, {}, 0s) == arrival::retransmitted);
    CHECK(order.take(500, segment_size, {}, 0s) == arrival::retransmitted);
    CHECK(order.take(1500, segment_size, {}, 0s) == arrival::in_order);
}

TEST_CASE("questions whether this end is there, and what was before the beginning, are no retransmissions", "[tap]")
{
    sequence_tracker order;
    CHECK(order.take(5000, segment_size, {}, 0s) == arrival::in_order);
    CHECK(order.take(5999, 1, {}, 0s) == arrival::in_order);
    CHECK(order.take(5999, 0, {}, 0s) == arrival::in_order);
    CHECK(order.take(4000, segment_size, {}, 0s) == arrival::in_order);
}

TEST_CASE("gaps that the receiver does not have are the tap's", "[tap]")
{
    sequence_tracker order;
    CHECK(order.acknowledged(77) == 0);
    CHECK(order.take(0, segment_size, {}, 0s) == arrival::in_order);
    CHECK(order.take(2000, segment_size, {}, 0s) == arrival::behind_gap);
    CHECK(order.take(4000, segment_size, {}, 0s) == arrival::behind_gap);
    CHECK(order.acknowledged(1000) == 0);
    CHECK(order.acknowledged(3000) == 1);
    CHECK(order.missing() == 1000);
    // Ahead of all that was seen.
    CHECK(order.acknowledged(9000) == 2);
    CHECK(order.missing() == 0);
    CHECK(order.take(9000, segment_size, {}, 0s) == arrival::in_order);
}

TEST_CASE("gaps are forgotten when there are many", "[tap]")
{
    sequence_tracker order;
    CHECK(order.take(0, 1, {}, 0s) == arrival::in_order);
    for (std::uint32_t i = 1; i <= 1000; ++i)
        CHECK(order.take(2 * i, 1, {}, 0s) == arrival::behind_gap);
    CHECK(order.missing() == 64);
}

TEST_CASE("both directions are one flow", "[tap]")
{
    flow_table seen;
    seen.take(data(1, 100), false, 1s);
    seen.take(answer(101, 512), true, 2s);
    seen.take(data(201, 100, true), false, 3s);
    auto const& counts = only(seen);
    CHECK(counts.packets == 2);
    CHECK(counts.bytes == 200);
    CHECK(counts.gaps == 1);
    CHECK(counts.missing == 100);
    CHECK(counts.unsplit == 1);
    CHECK(counts.unsplit_bytes == 100);
    CHECK(counts.sent == 1);
    CHECK(counts.first == 1s);
    CHECK(counts.last == 3s);
}

TEST_CASE("a window has its scale from the beginning of the flow", "[tap]")
{
    flow_table seen;
    auto opening = answer(0, 64000);
    opening.syn = true;
    opening.window_scale = 7;
    auto reply = data(1, 0);
    reply.syn = true;
    SECTION("that both ends know")
    {
        reply.window_scale = 2;
        seen.take(opening, true, 1s);
        CHECK(only(seen).window == 64000);
        seen.take(reply, false, 1s);
        seen.take(answer(2, 500), true, 1s);
        CHECK(only(seen).window == 500 << 7);
        CHECK(only(seen).scaled);
    }
    SECTION("that the peer does not know")
    {
        seen.take(opening, true, 1s);
        seen.take(reply, false, 1s);
        seen.take(answer(2, 500), true, 1s);
        CHECK(only(seen).window == 500);
        CHECK(only(seen).scaled);
    }
    SECTION("that was not seen")
    {
        seen.take(answer(2, 500), true, 1s);
        CHECK(only(seen).window == 500);
        CHECK_FALSE(only(seen).scaled);
    }
}

TEST_CASE("the handshake gives the shortest time to a retransmission", "[tap]")
{
    auto const count = [](moment round_trip) {
        flow_table seen;
        auto opening = answer(0, 64000);
        opening.syn = true;
        seen.take(opening, true, 1s);
        seen.take(data(1, 0), false, 1s + round_trip);
        seen.take(data(1, 100), false, 2s);
        seen.take(data(201, 100), false, 2s);
        seen.take(data(101, 100), false, 2s + 500us);
        CHECK(only(seen).retransmitted + only(seen).out_of_order == 1);
        return only(seen).retransmitted;
    };
    CHECK(count(400us) == 1);
    CHECK(count(600us) == 0);
    CHECK(count(1s) == 0);
}

TEST_CASE("a second connection between the same ends begins anew", "[tap]")
{
    flow_table seen;
    seen.take(data(1, 100), false, 1s);
    auto opening = data(900'000, 0);
    opening.syn = true;
    seen.take(opening, false, 2s);
    seen.take(data(900'001, 100), false, 2s);
    CHECK(only(seen).gaps == 0);
    CHECK(only(seen).packets == 2);
}

TEST_CASE("the end of a flow is no gap", "[tap]")
{
    flow_table seen;
    auto last = data(101, 0);
    last.fin = true;
    seen.take(data(1, 100), false, 1s);
    seen.take(last, false, 1s);
    seen.take(answer(102, 500), true, 1s);
    CHECK(only(seen).gaps == 0);
    CHECK(only(seen).unseen == 0);
    CHECK(only(seen).packets == 1);
}

TEST_CASE("flows beyond the most are counted together", "[tap]")
{
    flow_table seen;
    for (std::size_t i = 0; i < flow_table::most_flows + 5; ++i) {
        auto one = data(1, 100);
        one.source.port = static_cast<std::uint16_t>(i + 1);
        seen.take(one, false, 1s);
    }
    CHECK(seen.flows().size() == flow_table::most_flows);
    CHECK(seen.others() == 5);
}
