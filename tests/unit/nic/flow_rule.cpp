// SPDX-License-Identifier: Apache-2.0
#include "nic/flow_rule.hpp"

#include <arpa/inet.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

using namespace gpurx::detail;
using boost::asio::ip::make_address;
using boost::asio::ip::tcp;

namespace {

tcp::endpoint end_at(char const* address, unsigned short port)
{
    return {make_address(address), port};
}

}  // namespace

TEST_CASE("a connection is matched by both of its ends")
{
    auto const match = match_connection(end_at("10.77.0.1", 5000), end_at("10.77.0.2", 4000));
    CHECK_FALSE(match.v6);
    CHECK(match.local == make_address("10.77.0.1"));
    CHECK(match.local_port == 5000);
    CHECK(match.remote == end_at("10.77.0.2", 4000));
    CHECK(to_string(match) == "tcp4 10.77.0.2:4000 -> 10.77.0.1:5000");
}

TEST_CASE("scopes are left out and mapped addresses are IPv4: neither is on the wire")
{
    auto const scoped = match_connection(end_at("fe80::1%1", 5000), end_at("fe80::2%1", 4000));
    CHECK(scoped.local == make_address("fe80::1"));
    CHECK(scoped.remote == end_at("fe80::2", 4000));
    CHECK(to_string(scoped) == "tcp6 [fe80::2]:4000 -> [fe80::1]:5000");

    CHECK(match_connection(end_at("::ffff:10.77.0.1", 5000), end_at("::ffff:10.77.0.2", 4000)) ==
          match_connection(end_at("10.77.0.1", 5000), end_at("10.77.0.2", 4000)));
}

TEST_CASE("a listener is matched by its address and port")
{
    auto const matches = match_listener(end_at("10.77.0.1", 5000), false);
    REQUIRE(matches.size() == 1);
    CHECK(to_string(matches[0]) == "tcp4 * -> 10.77.0.1:5000");
    CHECK(to_string(match_listener(end_at("0.0.0.0", 5000), false).at(0)) == "tcp4 * -> *:5000");
}

TEST_CASE("a listener on all IPv6 addresses may take IPv4 as well")
{
    auto const both = match_listener(end_at("::", 5000), true);
    REQUIRE(both.size() == 2);
    CHECK(to_string(both[0]) == "tcp6 * -> *:5000");
    CHECK(to_string(both[1]) == "tcp4 * -> *:5000");
    CHECK(match_listener(end_at("::", 5000), false).size() == 1);
    CHECK(match_listener(end_at("fd77::1", 5000), true).size() == 1);
    CHECK(match_listener(end_at("0.0.0.0", 5000), true).size() == 1);
    CHECK_FALSE(match_listener(end_at("::ffff:10.77.0.1", 5000), true).at(0).v6);
}

TEST_CASE("a match widens from both ends to the local end to the local port")
{
    auto const wider = widened(match_connection(end_at("10.77.0.1", 5000), end_at("10.77.0.2", 4000)));
    REQUIRE(wider.size() == 3);
    CHECK(to_string(wider[1]) == "tcp4 * -> 10.77.0.1:5000");
    CHECK(to_string(wider[2]) == "tcp4 * -> *:5000");
    CHECK(widened(wider[1]).size() == 2);
    CHECK(widened(wider[2]).size() == 1);
}

TEST_CASE("a rule for IPv4 in the kernel's form")
{
    flow_rule const rule{match_connection(end_at("10.77.0.1", 5000), end_at("10.77.0.2", 4000)), rule_target::queue, 3};
    auto const raw = encode_rule(rule);
    CHECK(raw.cmd == ETHTOOL_SRXCLSRLINS);
    CHECK(raw.fs.flow_type == TCP_V4_FLOW);
    CHECK(raw.fs.ring_cookie == 3);
    auto const& value = raw.fs.h_u.tcp_ip4_spec;
    auto const& mask = raw.fs.m_u.tcp_ip4_spec;
    CHECK(value.ip4dst == htonl(0x0a4d0001));
    CHECK(mask.ip4dst == 0xffffffff);
    CHECK(value.ip4src == htonl(0x0a4d0002));
    CHECK(mask.ip4src == 0xffffffff);
    CHECK(value.pdst == htons(5000));
    CHECK(mask.pdst == 0xffff);
    CHECK(value.psrc == htons(4000));
    CHECK(mask.psrc == 0xffff);
    CHECK(mask.tos == 0);
}

TEST_CASE("a rule to an RSS context in the kernel's form")
{
    flow_rule const rule{match_listener(end_at("::", 5000), false).at(0), rule_target::context, 2};
    auto const raw = encode_rule(rule);
    CHECK(raw.fs.flow_type == (TCP_V6_FLOW | FLOW_RSS));
    CHECK(raw.fs.ring_cookie == 0);
    CHECK(raw.rss_context == 2);
    auto const& mask = raw.fs.m_u.tcp_ip6_spec;
    CHECK(mask.pdst == 0xffff);
    CHECK(mask.psrc == 0);
    CHECK((mask.ip6dst[0] | mask.ip6dst[1] | mask.ip6dst[2] | mask.ip6dst[3]) == 0);
}

TEST_CASE("a rule of ours reads back as what it was")
{
    auto const match = GENERATE(
        match_connection(end_at("10.77.0.1", 5000), end_at("10.77.0.2", 4000)),
        match_connection(end_at("fd77::1", 5000), end_at("fd77::2", 4000)),
        match_listener(end_at("10.77.0.1", 5000), false).at(0), match_listener(end_at("fd77::1", 5000), false).at(0),
        match_listener(end_at("0.0.0.0", 1), false).at(0), match_listener(end_at("::", 65535), false).at(0));
    auto const kind = GENERATE(rule_target::queue, rule_target::context);
    flow_rule const rule{match, kind, 5};
    auto raw = encode_rule(rule);
    raw.fs.location = 1023;
    auto const read = decode_rule(raw);
    CHECK(read.id == 1023);
    CHECK(read.rule == rule);
    CHECK(read.queue == (kind == rule_target::queue ? std::optional{5U} : std::nullopt));
}

TEST_CASE("a rule of another form is told apart")
{
    auto raw =
        encode_rule({match_connection(end_at("10.77.0.1", 5000), end_at("10.77.0.2", 4000)), rule_target::queue, 3});
    SECTION("part of an address")
    {
        raw.fs.m_u.tcp_ip4_spec.ip4src = htonl(0xffffff00);
    }
    SECTION("part of a port")
    {
        raw.fs.m_u.tcp_ip4_spec.pdst = htons(0xff00);
    }
    SECTION("no local port")
    {
        raw.fs.m_u.tcp_ip4_spec.pdst = 0;
    }
    SECTION("remote address without its port")
    {
        raw.fs.m_u.tcp_ip4_spec.psrc = 0;
    }
    SECTION("type of service as well")
    {
        raw.fs.m_u.tcp_ip4_spec.tos = 0xff;
    }
    SECTION("VLAN as well")
    {
        raw.fs.flow_type |= FLOW_EXT;
    }
    SECTION("UDP")
    {
        raw.fs.flow_type = UDP_V4_FLOW;
    }
    CHECK_FALSE(decode_rule(raw).rule);
    CHECK(decode_rule(raw).queue == 3U);
}

TEST_CASE("a rule that leads to no queue of the device itself is not ours")
{
    auto raw =
        encode_rule({match_connection(end_at("10.77.0.1", 5000), end_at("10.77.0.2", 4000)), rule_target::queue, 3});
    raw.fs.ring_cookie = GENERATE(RX_CLS_FLOW_DISC, RX_CLS_FLOW_WAKE, std::uint64_t{1} << 32 | 3);
    CHECK_FALSE(decode_rule(raw).rule);
    CHECK_FALSE(decode_rule(raw).queue);
}

TEST_CASE("rules go to the last place that is free")
{
    rule_places places{{7, 2, 6, 99}, 8};
    CHECK(places.last_free(false) == 5U);
    places.take(5);
    CHECK(places.last_free(false) == 4U);
    places.give_back(6);
    CHECK(places.last_free(false) == 6U);
    places.take(6);
    CHECK(places.last_free(false) == 4U);
    for (std::uint32_t const place : {4U, 3U, 1U, 0U}) {
        CHECK(places.last_free(false) == place);
        places.take(place);
    }
    CHECK(places.last_free(false) == std::nullopt);
    places.give_back(99);
    CHECK(places.last_free(false) == std::nullopt);
    places.give_back(2);
    CHECK(places.last_free(false) == 2U);
    CHECK(rule_places{}.last_free(false) == std::nullopt);
}

TEST_CASE("a rule of one connection ranks above those of whole ports, as long as there is room")
{
    rule_places places{{}, 6};
    CHECK(places.last_free(false) == 5U);
    places.take(5);
    for (std::uint32_t const place : {2U, 1U, 0U}) {
        CHECK(places.last_free(true) == place);
        places.take(place);
    }
    CHECK(places.last_free(true) == 4U);
    CHECK(places.last_free(false) == 4U);
    // A place that comes free behind a port's rule is none for a connection.
    places.give_back(5);
    places.give_back(1);
    CHECK(places.last_free(true) == 1U);
    CHECK(places.last_free(false) == 5U);
    CHECK(rule_places{}.last_free(true) == std::nullopt);
}
