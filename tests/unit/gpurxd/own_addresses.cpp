// SPDX-License-Identifier: Apache-2.0
#include "own_addresses.hpp"

#include <catch2/catch_test_macros.hpp>
#include <vector>

using namespace gpurx::gpurxd;
using gpurx::asio::ip::make_address;
using gpurx::asio::ip::tcp;

namespace {

std::vector<host_address> const host{{"lo", make_address("127.0.0.1")},  {"lo", make_address("::1")},
                                     {"eth1", make_address("10.0.0.1")}, {"eth2", make_address("10.1.0.1")},
                                     {"eth1", make_address("fd00::1")},  {"eth1", make_address("fe80::1")},
                                     {"veth", make_address("fe80::2")},  {"veth", make_address("10.1.0.1")}};

std::vector<tcp::endpoint> ends(std::vector<char const*> const& addresses)
{
    std::vector<tcp::endpoint> all;
    for (auto const* const one : addresses)
        all.emplace_back(make_address(one), 80);
    return all;
}

std::vector<tcp::endpoint> heard_at(char const* address, bool also_v4 = false)
{
    return ends_of(host, {make_address(address), 80}, also_v4, "eth1");
}

}  // namespace

TEST_CASE("an address is this host's own if an interface has it")
{
    CHECK(is_own(host, make_address("10.0.0.1")));
    CHECK(is_own(host, make_address("::ffff:10.0.0.1")));
    CHECK(is_own(host, make_address("fe80::1%3")));
    CHECK_FALSE(is_own(host, make_address("10.0.0.2")));
    CHECK_FALSE(is_own(host, make_address("0.0.0.0")));
    CHECK_FALSE(is_own(host, make_address("::")));
}

TEST_CASE("a listener on every address hears at each that a NIC can bring packets for")
{
    CHECK(heard_at("0.0.0.0") == ends({"10.0.0.1", "10.1.0.1"}));
    CHECK(heard_at("::") == ends({"fd00::1", "fe80::1"}));
    CHECK(heard_at("::", true) == ends({"10.0.0.1", "10.1.0.1", "fd00::1", "fe80::1"}));
    CHECK(heard_at("::ffff:10.0.0.9") == ends({"10.0.0.9"}));
    CHECK(ends_of({}, {make_address("0.0.0.0"), 80}, false, "eth1").empty());
}
