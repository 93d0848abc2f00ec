// SPDX-License-Identifier: Apache-2.0
#include "flow_rule.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace gpurx::detail {

namespace ip = boost::asio::ip;
using ip::tcp;

namespace {

ip::address address_on_the_wire(ip::address const& address)
{
    if (address.is_v4())
        return address;
    auto const v6 = address.to_v6();
    if (v6.is_v4_mapped())
        return ip::make_address_v4(ip::v4_mapped, v6);
    return ip::address_v6{v6.to_bytes()};
}

flow_match match_local(tcp::endpoint const& local)
{
    flow_match match;
    auto const end = on_the_wire(local);
    match.v6 = end.address().is_v6();
    match.local_port = end.port();
    if (!end.address().is_unspecified())
        match.local = end.address();
    return match;
}

std::string to_string(bool v6, std::optional<ip::address> const& address, std::uint16_t port)
{
    if (!address)
        return fmt::format("*:{}", port);
    if (v6)
        return fmt::format("[{}]:{}", address->to_string(), port);
    return fmt::format("{}:{}", address->to_string(), port);
}

// A field that is matched whole or not at all. False: the mask has bits of both kinds.
template <class Field>
bool whole_or_none(Field const& mask, bool& matched)
{
    auto const* const bytes = reinterpret_cast<unsigned char const*>(&mask);
    auto const* const end = bytes + sizeof(Field);
    matched = bytes[0] != 0;
    return std::all_of(bytes, end, [bytes](unsigned char byte) { return byte == bytes[0]; }) &&
           (bytes[0] == 0 || bytes[0] == 0xff);
}

template <class Field>
void match_bytes(Field& value, Field& mask, void const* bytes)
{
    std::memcpy(&value, bytes, sizeof(value));
    std::memset(&mask, 0xff, sizeof(mask));
}

void match_port(std::uint16_t& value, std::uint16_t& mask, std::uint16_t port)
{
    value = htons(port);
    mask = 0xffff;
}

void encode_v4(flow_match const& match, ethtool_tcpip4_spec& value, ethtool_tcpip4_spec& mask)
{
    match_port(value.pdst, mask.pdst, match.local_port);
    if (match.local)
        match_bytes(value.ip4dst, mask.ip4dst, match.local->to_v4().to_bytes().data());
    if (match.remote) {
        match_port(value.psrc, mask.psrc, match.remote->port());
        match_bytes(value.ip4src, mask.ip4src, match.remote->address().to_v4().to_bytes().data());
    }
}

void encode_v6(flow_match const& match, ethtool_tcpip6_spec& value, ethtool_tcpip6_spec& mask)
{
    match_port(value.pdst, mask.pdst, match.local_port);
    if (match.local)
        match_bytes(value.ip6dst, mask.ip6dst, match.local->to_v6().to_bytes().data());
    if (match.remote) {
        match_port(value.psrc, mask.psrc, match.remote->port());
        match_bytes(value.ip6src, mask.ip6src, match.remote->address().to_v6().to_bytes().data());
    }
}

ip::address address_of(std::uint32_t const& field)
{
    ip::address_v4::bytes_type bytes;
    std::memcpy(bytes.data(), &field, bytes.size());
    return ip::address_v4{bytes};
}

ip::address address_of(std::uint32_t const (&field)[4])
{
    ip::address_v6::bytes_type bytes;
    std::memcpy(bytes.data(), field, bytes.size());
    return ip::address_v6{bytes};
}

// Nothing if the rule matches by other fields, or by parts of them.
template <class Address>
struct rule_fields {
    Address const &local, &local_mask, &remote, &remote_mask;
    std::uint16_t local_port, local_port_mask, remote_port, remote_port_mask;
    std::uint8_t other_mask;
};

template <class Address>
std::optional<flow_match> decode_match(bool v6, rule_fields<Address> const& fields)
{
    bool local = false;
    bool remote = false;
    bool local_port = false;
    bool remote_port = false;
    if (fields.other_mask != 0 || !whole_or_none(fields.local_mask, local) ||
        !whole_or_none(fields.remote_mask, remote) || !whole_or_none(fields.local_port_mask, local_port) ||
        !whole_or_none(fields.remote_port_mask, remote_port) || !local_port || remote != remote_port)
        return std::nullopt;
    flow_match match;
    match.v6 = v6;
    match.local_port = ntohs(fields.local_port);
    if (local)
        match.local = address_of(fields.local);
    if (remote)
        match.remote = tcp::endpoint{address_of(fields.remote), ntohs(fields.remote_port)};
    return match;
}

std::optional<flow_match> decode_match(ethtool_rx_flow_spec const& spec)
{
    if ((spec.flow_type & (FLOW_EXT | FLOW_MAC_EXT)) != 0)
        return std::nullopt;
    switch (spec.flow_type & ~static_cast<unsigned>(FLOW_RSS)) {
        case TCP_V4_FLOW: {
            auto const& value = spec.h_u.tcp_ip4_spec;
            auto const& mask = spec.m_u.tcp_ip4_spec;
            return decode_match<std::uint32_t>(false, {value.ip4dst, mask.ip4dst, value.ip4src, mask.ip4src, value.pdst,
                                                       mask.pdst, value.psrc, mask.psrc, mask.tos});
        }
        case TCP_V6_FLOW: {
            auto const& value = spec.h_u.tcp_ip6_spec;
            auto const& mask = spec.m_u.tcp_ip6_spec;
            return decode_match<std::uint32_t[4]>(true, {value.ip6dst, mask.ip6dst, value.ip6src, mask.ip6src,
                                                         value.pdst, mask.pdst, value.psrc, mask.psrc, mask.tclass});
        }
        default:
            return std::nullopt;
    }
}

}  // namespace

tcp::endpoint on_the_wire(tcp::endpoint const& end)
{
    return {address_on_the_wire(end.address()), end.port()};
}

flow_match match_connection(tcp::endpoint const& local, tcp::endpoint const& remote)
{
    flow_match match = match_local(local);
    match.remote = on_the_wire(remote);
    return match;
}

std::vector<flow_match> match_listener(tcp::endpoint const& local, bool also_v4)
{
    std::vector<flow_match> matches{match_local(local)};
    if (also_v4 && matches.front().v6 && !matches.front().local) {
        matches.push_back(matches.front());
        matches.back().v6 = false;
    }
    return matches;
}

std::vector<flow_match> widened(flow_match const& match)
{
    std::vector<flow_match> result{match};
    flow_match wider = match;
    if (wider.remote) {
        wider.remote.reset();
        result.push_back(wider);
    }
    if (wider.local) {
        wider.local.reset();
        result.push_back(wider);
    }
    return result;
}

rule_places::rule_places(std::vector<std::uint32_t> const& used, std::uint32_t size)
    : taken_(size), end_{size}, half_end_{size / 2}
{
    for (std::uint32_t const place : used)
        take(place);
}

std::optional<std::uint32_t> rule_places::last_free(bool of_connection) noexcept
{
    if (of_connection) {
        if (auto const place = last_free_before(half_end_))
            return place;
    }
    return last_free_before(end_);
}

std::optional<std::uint32_t> rule_places::last_free_before(std::uint32_t& end) const noexcept
{
    while (end > 0 && taken_[end - 1])
        --end;
    return end > 0 ? std::optional{end - 1} : std::nullopt;
}

void rule_places::take(std::uint32_t place) noexcept
{
    if (place < taken_.size())
        taken_[place] = true;
}

void rule_places::give_back(std::uint32_t place) noexcept
{
    if (place >= taken_.size())
        return;
    taken_[place] = false;
    end_ = std::max(end_, place + 1);
    if (place < taken_.size() / 2)
        half_end_ = std::max(half_end_, place + 1);
}

std::string to_string(flow_match const& match)
{
    auto const local = to_string(match.v6, match.local, match.local_port);
    char const* const family = match.v6 ? "tcp6" : "tcp4";
    if (!match.remote)
        return fmt::format("{} * -> {}", family, local);
    return fmt::format("{} {} -> {}", family, to_string(match.v6, match.remote->address(), match.remote->port()),
                       local);
}

ethtool_rxnfc encode_rule(flow_rule const& rule)
{
    ethtool_rxnfc request{};
    request.cmd = ETHTOOL_SRXCLSRLINS;
    auto& spec = request.fs;
    spec.flow_type = rule.match.v6 ? TCP_V6_FLOW : TCP_V4_FLOW;
    if (rule.match.v6)
        encode_v6(rule.match, spec.h_u.tcp_ip6_spec, spec.m_u.tcp_ip6_spec);
    else
        encode_v4(rule.match, spec.h_u.tcp_ip4_spec, spec.m_u.tcp_ip4_spec);
    if (rule.kind == rule_target::context) {
        spec.flow_type |= FLOW_RSS;
        request.rss_context = rule.target;
    } else {
        spec.ring_cookie = rule.target;
    }
    return request;
}

installed_rule decode_rule(ethtool_rxnfc const& answer)
{
    installed_rule result;
    auto const& spec = answer.fs;
    result.id = spec.location;
    bool const to_context = (spec.flow_type & FLOW_RSS) != 0;
    // A cookie may also name a virtual function, or mean "drop" or "wake up".
    bool const to_queue = !to_context && spec.ring_cookie <= ETHTOOL_RX_FLOW_SPEC_RING;
    if (to_queue)
        result.queue = static_cast<unsigned>(spec.ring_cookie);
    // In a context the cookie is an offset; we use none.
    if (!to_queue && !(to_context && spec.ring_cookie == 0))
        return result;
    if (auto const match = decode_match(spec)) {
        result.rule = flow_rule{*match, to_context ? rule_target::context : rule_target::queue,
                                to_context ? answer.rss_context : *result.queue};
    }
    return result;
}

}  // namespace gpurx::detail
