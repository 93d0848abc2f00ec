// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

namespace gpurx::gpurxd {

inline constexpr int first_of_child = 3;

// Starts this program again with these arguments; it has the descriptors as 3, 4 and so on, and is in a group of its
// own: what a terminal sends this process is not for it. Throws system_error.
[[nodiscard]] pid_t start_process(std::vector<std::string> command, std::span<int const> descriptors);

}  // namespace gpurx::gpurxd
