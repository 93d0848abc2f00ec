// SPDX-License-Identifier: Apache-2.0
#include "selection.hpp"

#include <fmt/format.h>

#include <boost/asio/ip/address.hpp>
#include <charconv>
#include <stdexcept>

namespace gpurx::doctor::tap {

namespace {

namespace ip = boost::asio::ip;

struct flow_end {
    std::optional<ip::address> address;
    std::uint16_t port = 0;
};

[[noreturn]] void refuse(std::string_view text, std::string_view why)
{
    throw std::invalid_argument{fmt::format("'{}' {}", text, why)};
}

std::uint16_t parse_port(std::string_view text)
{
    if (text == "*")
        return 0;
    std::uint16_t port = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    if (error != std::errc{} || end != text.data() + text.size() || port == 0)
        refuse(text, "is no port: 1 to 65535, or *");
    return port;
}

std::optional<ip::address> parse_address(std::string_view text)
{
    if (text == "*")
        return std::nullopt;
    if (text.starts_with('[') && text.ends_with(']'))
        text = text.substr(1, text.size() - 2);
    boost::system::error_code error;
    auto const address = ip::make_address(std::string{text}, error);
    if (error || (address.is_v6() && address.to_v6().scope_id() != 0))
        refuse(text, "is no address: 10.0.0.1, [fd00::1], or *");
    return address;
}

flow_end parse_end(std::string_view text)
{
    auto const colon = text.rfind(':');
    if (colon == std::string_view::npos || text.ends_with(']'))
        refuse(text, "is no end of a flow: ADDRESS:PORT");
    return {parse_address(text.substr(0, colon)), parse_port(text.substr(colon + 1))};
}

bool fits(std::optional<ip::address> const& address, bool v6)
{
    return !address || address->is_v6() == v6;
}

}  // namespace

selections of_port(std::uint16_t port)
{
    selections chosen;
    for (bool const v6 : {false, true}) {
        chosen.insert({.v6 = v6, .local = {}, .local_port = port, .remote = {}, .remote_port = 0});
        chosen.insert({.v6 = v6, .local = {}, .local_port = 0, .remote = {}, .remote_port = port});
    }
    return chosen;
}

selections of_flow(std::string_view text)
{
    auto const comma = text.find(',');
    if (comma == std::string_view::npos)
        refuse(text, "is no flow: LOCAL,REMOTE, each ADDRESS:PORT");
    auto const local = parse_end(text.substr(0, comma));
    auto const remote = parse_end(text.substr(comma + 1));
    selections chosen;
    for (bool const v6 : {false, true}) {
        if (fits(local.address, v6) && fits(remote.address, v6))
            chosen.insert({v6, local.address, local.port, remote.address, remote.port});
    }
    if (chosen.empty())
        refuse(text, "has an IPv4 end and an IPv6 one");
    return chosen;
}

selections of_sessions(std::vector<detail::journal_owner> const& owners)
{
    selections chosen;
    for (auto const& owner : owners) {
        for (auto const& [id, rule] : owner.rules) {
            selection one{rule.match.v6, rule.match.local, rule.match.local_port, {}, 0};
            if (rule.match.remote) {
                one.remote = rule.match.remote->address();
                one.remote_port = rule.match.remote->port();
            }
            chosen.insert(one);
        }
    }
    return chosen;
}

selections widened(selections const& chosen)
{
    selections wider;
    for (auto const& one : chosen) {
        auto const remote_port = one.local_port != 0 ? std::uint16_t{0} : one.remote_port;
        wider.insert({one.v6, {}, one.local_port, {}, remote_port});
    }
    return wider;
}

}  // namespace gpurx::doctor::tap
