// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "port_users.hpp"

namespace gpurx::gpurxd {

// TCP's sockets of this thread's network namespace that have one of these local ports. The kernel goes through all that
// there are, and tells of these. Throws system_error.
[[nodiscard]] std::vector<owned_socket> sockets_on(std::set<std::uint16_t> const& ports);
// The same from /proc/net, for kernels without sock_diag: each socket there is becomes a line of text.
[[nodiscard]] std::vector<owned_socket> sockets_on_by_table(std::set<std::uint16_t> const& ports);

}  // namespace gpurx::gpurxd
