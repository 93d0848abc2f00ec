// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace gpurx::gpurxd {

inline constexpr int first_of_child = 3;

// Starts this program again with these arguments; it has the descriptor as 3, and is in a group of its own: what a
// terminal sends this process is not for it. Throws system_error.
[[nodiscard]] pid_t start_process(std::vector<std::string> command, int descriptor);

}  // namespace gpurx::gpurxd
