// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/syscalls.hpp"

namespace gpurx::gpurxd {

// The socket at which clients connect: systemd's, or one at this path. Throws system_error: EADDRINUSE if somebody
// listens there.
[[nodiscard]] detail::unique_fd open_door(std::string const& path);

}  // namespace gpurx::gpurxd
