// SPDX-License-Identifier: Apache-2.0
//
// Checks of the sockets for which a client asks for rules: they are the client's, and no rule reaches another user.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "endpoints.hpp"
#include "lease/daemon_protocol.hpp"

namespace gpurx::gpurxd {

// TCP's sockets of this thread's network namespace that have one of these local ports. The kernel goes through all that
// there are, and tells of these. Throws system_error.
[[nodiscard]] std::vector<owned_socket> sockets_on(std::set<std::uint16_t> const& ports);
// The same from /proc/net, for kernels without sock_diag: each socket there is becomes a line of text.
[[nodiscard]] std::vector<owned_socket> sockets_on_by_table(std::set<std::uint16_t> const& ports);

// Refuses, by system_error, a descriptor that is not the socket of this flow, and an end that is another user's.
void check_flow_socket(int descriptor, detail::steer_flow_request const& what, std::uint32_t uid);
// The same for a listener. Returns where it hears what comes in by this interface.
[[nodiscard]] std::vector<asio::ip::tcp::endpoint> check_listening_socket(int descriptor,
                                                                          detail::steer_port_request const& what,
                                                                          std::uint32_t uid,
                                                                          std::string_view interface);
// The ends at which another user has sockets by now, or whose address is not this host's any more.
[[nodiscard]] std::set<asio::ip::tcp::endpoint> lost_endpoints(std::set<asio::ip::tcp::endpoint> const& ends,
                                                               std::uint32_t uid);

}  // namespace gpurx::gpurxd
