// SPDX-License-Identifier: Apache-2.0
#include "tap/flow_table.hpp"

#include <catch2/catch_test_macros.hpp>

using namespace gpurx::doctor::tap;
using namespace std::chrono_literals;

namespace {

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

TEST_CASE("the handshake says how soon something can come again", "[tap]")
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
