// SPDX-License-Identifier: Apache-2.0
#include "own_addresses.hpp"

#include <algorithm>
#include <set>

#include "nic/flow_rule.hpp"

namespace gpurx::gpurxd {

namespace {

bool is_link_local(asio::ip::address const& address)
{
    return address.is_v6() && address.to_v6().is_link_local();
}

}  // namespace

bool is_own(std::span<host_address const> all, asio::ip::address const& address)
{
    auto const here = detail::on_the_wire({address, 0}).address();
    return std::ranges::find(all, here, &host_address::address) != all.end();
}

std::vector<asio::ip::tcp::endpoint> ends_of(std::span<host_address const> all, asio::ip::tcp::endpoint const& listener,
                                             bool also_v4, std::string_view interface)
{
    auto const bound = listener.address();
    if (!bound.is_unspecified())
        return {detail::on_the_wire(listener)};
    std::set<asio::ip::address> found;
    for (auto const& one : all) {
        bool const is_heard = one.address.is_v6() == bound.is_v6() || (one.address.is_v4() && also_v4);
        bool const comes_here = !is_link_local(one.address) || one.interface == interface;
        if (is_heard && comes_here && !one.address.is_loopback())
            found.insert(one.address);
    }
    std::vector<asio::ip::tcp::endpoint> ends;
    ends.reserve(found.size());
    for (auto const& address : found)
        ends.emplace_back(address, listener.port());
    return ends;
}

}  // namespace gpurx::gpurxd
