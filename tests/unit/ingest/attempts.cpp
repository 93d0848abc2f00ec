// SPDX-License-Identifier: Apache-2.0
#include <boost/asio/ip/tcp.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "net/recent.hpp"
#include "net/tcp.hpp"

namespace gpurx::ingest::detail {

namespace {

using endpoint = asio::ip::tcp::endpoint;

std::vector<std::string> order_of(std::vector<std::string> const& addresses, std::string const& silent = {})
{
    std::vector<endpoint> found;
    for (auto const& each : addresses)
        found.emplace_back(asio::ip::make_address(each), std::uint16_t{80});
    std::vector<std::string> order;
    for (auto const& each :
         in_order_of_attempts(found, [&](endpoint const& peer) { return peer.address().to_string() == silent; }))
        order.push_back(each.address().to_string());
    return order;
}

}  // namespace

TEST_CASE("attempts to connect alternate between the families, and the resolver's first stays the first")
{
    using names = std::vector<std::string>;
    CHECK(order_of({"::1", "::2", "::3", "1.1.1.1"}) == names{"::1", "1.1.1.1", "::2", "::3"});
    CHECK(order_of({"1.1.1.1", "2.2.2.2", "::1"}) == names{"1.1.1.1", "::1", "2.2.2.2"});
    CHECK(order_of({"1.1.1.1", "2.2.2.2", "::1"}, "1.1.1.1") == names{"::1", "2.2.2.2", "1.1.1.1"});
    CHECK(order_of({}).empty());
}

TEST_CASE("a peer is remembered for ten minutes")
{
    using namespace std::chrono_literals;
    std::chrono::steady_clock::time_point const start{1h};
    recent_set<int> noted;
    noted.note(1, start);
    CHECK(noted.contains(1, start + 9min));
    CHECK_FALSE(noted.contains(2, start));
    CHECK_FALSE(noted.contains(1, start + 10min));
    noted.forget(1);
    CHECK_FALSE(noted.contains(1, start));
}

}  // namespace gpurx::ingest::detail
