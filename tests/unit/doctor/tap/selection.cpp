// SPDX-License-Identifier: Apache-2.0
#include "tap/selection.hpp"

#include <catch2/catch_test_macros.hpp>
#include <stdexcept>

using namespace gpurx::doctor::tap;
namespace ip = boost::asio::ip;
namespace detail = gpurx::detail;

TEST_CASE("a flow is named by its ends", "[tap]")
{
    CHECK(of_flow("10.0.0.1:5000,10.0.0.2:*") ==
          selections{{false, ip::make_address("10.0.0.1"), 5000, ip::make_address("10.0.0.2"), 0}});
    CHECK(of_flow("*:5000,[fd00::2]:4000") == selections{{true, {}, 5000, ip::make_address("fd00::2"), 4000}});
    CHECK(of_flow("*:5000,*:*") == selections{{false, {}, 5000, {}, 0}, {true, {}, 5000, {}, 0}});
    for (auto const* const wrong :
         {"", "10.0.0.1:5000", "10.0.0.1,10.0.0.2", "10.0.0.1:0,*:*", "10.0.0.1:65536,*:*", "10.0.0.1:5x,*:*",
          "10.0.0:5000,*:*", "10.0.0.1:1,[fd00::1]:2", "[fd00::1],*:*", "[fe80::1%lo]:1,*:*", ":1,*:*"}) {
        CAPTURE(wrong);
        CHECK_THROWS_AS(of_flow(wrong), std::invalid_argument);
    }
}

TEST_CASE("the flows of sessions are those of their rules", "[tap]")
{
    detail::flow_rule listener;
    listener.match = {.v6 = false, .local = ip::make_address("10.0.0.1"), .local_port = 5000, .remote = {}};
    detail::flow_rule flow;
    flow.match = {.v6 = true,
                  .local = ip::make_address("fd00::1"),
                  .local_port = 40000,
                  .remote = ip::tcp::endpoint{ip::make_address("fd00::2"), 9000}};
    detail::journal_owner one;
    one.rules.push_back({7, listener});
    detail::journal_owner other;
    other.rules.push_back({std::nullopt, flow});
    other.rules.push_back({7, listener});
    CHECK(of_sessions({one, other}) ==
          selections{{false, ip::make_address("10.0.0.1"), 5000, {}, 0},
                     {true, ip::make_address("fd00::1"), 40000, ip::make_address("fd00::2"), 9000}});
    CHECK(of_sessions({}).empty());
}

TEST_CASE("widened they have a port only", "[tap]")
{
    CHECK(widened(of_flow("10.0.0.1:5000,10.0.0.2:4000")) == selections{{false, {}, 5000, {}, 0}});
    CHECK(widened(of_flow("10.0.0.1:*,10.0.0.2:4000")) == selections{{false, {}, 0, {}, 4000}});
}
