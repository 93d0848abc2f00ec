// SPDX-License-Identifier: Apache-2.0
//
// The policy's file, and the processes at the other end of connections, with the names that the system has for them.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "policy.hpp"

namespace gpurx::gpurxd {

struct daemon_paths {
    std::string policy = "/etc/gpurx/gpurxd.conf";
    std::string state_directory = "/run/gpurx";
};

// Throws system_error: what reading reports; EACCES if others than its owner, who is root or this user, may write it.
[[nodiscard]] std::variant<policy, std::vector<policy_damage>> parse_policy_file(std::string const& path);
// The same. EINVAL with the first line that is wrong.
[[nodiscard]] policy read_policy(std::string const& path);

// The ids that its lines mean. A name that nobody has now is left out. May ask other machines, if they keep the names.
[[nodiscard]] policy_ids resolve_ids(policy const& known);

// The process at the other end of a Unix socket, as it was when it connected: by numbers alone, which asks nobody; or
// with its names. Throws system_error.
[[nodiscard]] caller peer_ids(int connection);
[[nodiscard]] caller peer_caller(int connection);

}  // namespace gpurx::gpurxd
