// SPDX-License-Identifier: Apache-2.0
#include "proxy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <boost/beast/core/string.hpp>
#include <gpurx/ingest/error.hpp>

#include "authorization.hpp"
#include "display.hpp"

namespace gpurx::ingest::detail {

namespace {

namespace ip = asio::ip;

// curl's, where a proxy's URL has none.
constexpr std::string_view default_port = "1080";

std::string first_set(environment const& variable, std::initializer_list<std::string_view> names)
{
    for (auto const name : names) {
        if (auto value = variable(name); !value.empty())
            return value;
    }
    return {};
}

bool is_within(ip::address const& address, std::string const& network)
{
    error_code code;
    if (address.is_v4()) {
        auto const of = ip::make_network_v4(network, code);
        return !code && ip::network_v4{address.to_v4(), of.prefix_length()}.canonical() == of.canonical();
    }
    auto const of = ip::make_network_v6(network, code);
    return !code && ip::network_v6{address.to_v6(), of.prefix_length()}.canonical() == of.canonical();
}

bool is_address(std::string_view host, std::string_view entry)
{
    error_code code;
    auto const address = ip::make_address(std::string{host}, code);
    if (code)
        return false;
    if (entry.starts_with('[') && entry.ends_with(']'))
        entry = entry.substr(1, entry.size() - 2);
    auto const other = ip::make_address(std::string{entry}, code);
    return code ? is_within(address, std::string{entry}) : address == other;
}

// The domain itself, or a name below it.
bool is_below(std::string_view host, std::string_view domain)
{
    if (domain.starts_with('.'))
        domain.remove_prefix(1);
    if (domain.empty() || host.size() < domain.size())
        return false;
    auto const tail = host.substr(host.size() - domain.size());
    auto const begins_there = host.size() == domain.size() || host[host.size() - domain.size() - 1] == '.';
    return begins_there && boost::beast::iequals({tail.data(), tail.size()}, {domain.data(), domain.size()});
}

std::string with_brackets(std::string const& host)
{
    return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

}  // namespace

bool is_spared(std::string_view host, std::string_view list)
{
    if (list == "*")
        return true;
    while (!list.empty()) {
        auto const entry = list.substr(0, list.find_first_of(", \t"));
        if (is_below(host, entry) || (!entry.empty() && is_address(host, entry)))
            return true;
        list.remove_prefix(std::min(entry.size() + 1, list.size()));
    }
    return false;
}

std::optional<url> proxy_for(url const& to, environment const& variable, error_code& code, diagnostics& why)
{
    code.clear();
    auto text = to.secure ? first_set(variable, {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"})
                          : first_set(variable, {"http_proxy", "all_proxy", "ALL_PROXY"});
    if (text.empty() || is_spared(to.host, first_set(variable, {"no_proxy", "NO_PROXY"})))
        return std::nullopt;
    if (text.find("://") == std::string::npos)
        text = "http://" + text;
    auto found = parse_url(text, code, why);
    if (!code && found.secure)
        code = errc::bad_url;
    if (code) {
        why = {.operation = "use the proxy",
               .object = without_secrets(text),
               .kernel_message = {},
               .advice =
                   "a proxy has to be like http://HOST or http://HOST:PORT, in https_proxy, http_proxy, all_proxy or "
                   "no_proxy in "
                   "the environment"};
        return std::nullopt;
    }
    if (found.authority == with_brackets(found.host))
        found.port = default_port;
    return found;
}

header_fields proxy_fields(url const& proxy)
{
    if (proxy.user.empty())
        return {};
    return {{"Proxy-Authorization", basic_authorization(proxy.user)}};
}

url in_absolute_form(url to)
{
    to.target = "http://" + to.authority + to.target;
    return to;
}

std::string connect_request(url const& to, url const& proxy)
{
    auto const where = fmt::format("{}:{}", with_brackets(to.host), to.port);
    auto text = fmt::format("CONNECT {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: gpurx\r\n", where, where);
    for (auto const& each : proxy_fields(proxy))
        text += fmt::format("{}: {}\r\n", each.name, each.value);
    return text + "\r\n";
}

}  // namespace gpurx::ingest::detail
