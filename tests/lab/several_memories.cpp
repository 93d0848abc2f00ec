// SPDX-License-Identifier: Apache-2.0
//
// Several memories behind one port: flows that a rule of their own moves from one to another while their bytes are
// under way.
#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <list>
#include <utility>
#include <vector>

#include "bed.hpp"
#include "nic.hpp"
#include "parts.hpp"

using namespace gpurx::lab;
namespace asio = boost::asio;

namespace {

constexpr std::size_t flows = 64;
constexpr std::uint64_t each = mebibyte;
// More than a socket holds, so it is under way while flows are accepted and their rules made. Then the peers hold on
// until all rules are there: what comes after that arrives where it belongs.
constexpr std::uint64_t before_the_move = each / 4 * 3;

gpurx::rx_session open_two_memories(unsigned max_flows)
{
    std::vector<gpurx::device_memory> memories;
    for (int i = 0; i < 2; ++i)
        memories.push_back(gpurx::device_memory::on_host(64 * mebibyte));
    return open_parts(std::move(memories), max_flows);
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "64 flows of one port take turns on two memories, moved while bytes are under way",
                 "[memories]")
{
    auto const version = GENERATE(family::v4, family::v6);
    CAPTURE(version == family::v4);
    auto session = open_two_memories(flows);
    REQUIRE(session.parts() == 2);
    REQUIRE(session.queues().size() == 2);
    INFO(session.explain());

    asio::io_context context{1};
    gpurx::acceptor from{context, session, tcp::endpoint{near_address(version), 0}};
    auto const there = from.local_endpoint();
    std::list<peer_sender> peers;
    for (std::size_t i = 0; i < flows; ++i)
        peers.emplace_back(there, stream{.seed = 100 + i, .bytes = each}, before_the_move);
    std::vector<outcome> outcomes(flows);
    std::size_t accepted = 0;
    std::size_t ended = 0;
    asio::co_spawn(
        context,
        [&]() -> asio::awaitable<void> {
            for (auto& result : outcomes) {
                gpurx::receiver rx{context, session};
                co_await from.async_accept(rx);
                auto const how = accepted++ % 4 < 2 ? way::read : way::loan;
                asio::co_spawn(context, consume(std::move(rx), how, result), [&](std::exception_ptr failure) {
                    ++ended;
                    rethrow(failure);
                });
            }
        },
        rethrow);

    REQUIRE(run_until(context, [&] { return rules_of_flows(there.port()) == flows / 2; }));
    auto const home_before = session.part(1).stats().device_bytes;
    for (auto& peer : peers)
        peer.resume();
    REQUIRE(run_until(context, [&] { return ended == flows; }));

    for (std::size_t i = 0; i < flows; ++i) {
        INFO(i << ": " << outcomes[i]);
        CHECK(intact(outcomes[i], each));
        CHECK(outcomes[i].stats.host_bytes == 0);
        if (i % 2 == 0) {
            CHECK(outcomes[i].stats.resteered_bytes == 0);
        } else {
            CHECK(outcomes[i].stats.resteered_bytes > 0);
            CHECK(outcomes[i].stats.device_bytes >= each - before_the_move);
        }
    }
    auto const sum = session.stats();
    auto const moved = session.part(1).stats();
    fmt::print("{} bytes of flows that moved: {} before the move, {} after it and before the peers held on\n",
               moved.bytes(), moved.resteered_bytes, home_before);
    CHECK(sum.bytes() == flows * (each + 8));
    CHECK(sum.resteered_bytes == moved.resteered_bytes);
    CHECK(moved.bytes() == flows / 2 * (each + 8));
    // Each flow has been moved: what its peer sent after that, and what of it was on the way, is all there was to come.
    CHECK(moved.device_bytes - home_before >= flows / 2 * (each - before_the_move));

    // The rules go with the flows, and both memories are as they were.
    CHECK(run_until(context, [&] { return rules_of_flows(there.port()) == 0; }));
    check_empty(session.part(0));
    check_empty(session.part(1));
}

TEST_CASE_METHOD(unchanged_nic, "a program names the memory of a connection, by a function or by its receiver",
                 "[smoke][memories]")
{
    auto session = open_two_memories(4);
    asio::io_context context{1};
    gpurx::acceptor from{context, session, tcp::endpoint{near_address(family::v4), 0}};
    from.choose_memory([](tcp::endpoint const& peer) {
        CHECK(peer.address() == far_address(family::v4));
        return 1;
    });
    auto second = session.part(1);
    auto first = session.part(0);
    std::vector<outcome> outcomes(3);
    std::list<peer_sender> peers;
    std::size_t ended = 0;
    std::size_t moves = 0;
    for (auto* const of : {&session, &second, &first}) {
        auto& result = outcomes[peers.size()];
        peers.emplace_back(from.local_endpoint(), stream{.seed = 7 + peers.size(), .bytes = each}, before_the_move);
        gpurx::receiver rx{context, *of};
        bool accepted = false;
        from.async_accept(rx, [&](gpurx::error_code code) {
            CHECK_FALSE(code);
            accepted = true;
        });
        REQUIRE(run_until(context, [&] { return accepted; }));
        moves += of == &first ? 0 : 1;
        asio::co_spawn(context, consume(std::move(rx), way::loan, result), [&](std::exception_ptr failure) {
            ++ended;
            rethrow(failure);
        });
    }
    REQUIRE(run_until(context, [&] { return rules_of_flows(from.local_endpoint().port()) == moves; }));
    for (auto& peer : peers)
        peer.resume();
    REQUIRE(run_until(context, [&] { return ended == outcomes.size(); }));
    for (auto const& result : outcomes) {
        INFO(result);
        CHECK(intact(result, each));
    }
    CHECK(second.stats().bytes() == 2 * (each + 8));
    CHECK(second.stats().device_bytes >= 2 * (each - before_the_move));
    CHECK(outcomes[2].stats.device_bytes == each + 8);
    CHECK(run_until(context, [&] { return rules_of_flows(from.local_endpoint().port()) == 0; }));
    check_empty(first);
    check_empty(second);
}
