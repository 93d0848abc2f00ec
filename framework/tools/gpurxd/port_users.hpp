// SPDX-License-Identifier: Apache-2.0
//
// Whose sockets have a port: from the kernel's table of them (/proc/net/tcp, /proc/net/tcp6). No I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>

namespace gpurx::gpurxd {

// A user other than `uid` who has a socket with this local port. Sockets that no program has any more (TIME-WAIT) are
// nobody's. Lines of another form are left out.
[[nodiscard]] std::optional<std::uint32_t> find_other_user(std::string_view table, std::uint16_t port,
                                                           std::uint32_t uid);
// Those of `ports` for which there is one; one pass over the table.
[[nodiscard]] std::set<std::uint16_t> find_shared_ports(std::string_view table, std::set<std::uint16_t> const& ports,
                                                        std::uint32_t uid);

}  // namespace gpurx::gpurxd
