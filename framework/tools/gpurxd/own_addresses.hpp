// SPDX-License-Identifier: Apache-2.0
//
// Which addresses are this host's own. A socket says nothing of that: any program may bind one to any address
// (IP_FREEBIND), also to that of a container or a guest behind this host, whose packets a rule would take away. No I/O.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/error.hpp>

namespace gpurx::gpurxd {

struct host_address {
    std::string interface;
    asio::ip::address address;  // without scope
};

[[nodiscard]] bool is_own(std::span<host_address const> all, asio::ip::address const& address);

// Where connections to a listener arrive that can come from a NIC: at its address; at all of the host's if that is
// unspecified, but for those of loopback and the link-local ones of other interfaces. `also_v4`: as in steer_port().
[[nodiscard]] std::vector<asio::ip::tcp::endpoint> ends_of(std::span<host_address const> all,
                                                           asio::ip::tcp::endpoint const& listener, bool also_v4,
                                                           std::string_view interface);

}  // namespace gpurx::gpurxd
