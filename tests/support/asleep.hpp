// SPDX-License-Identifier: Apache-2.0
//
// Whether a thread of this process has got as far as to wait, as the kernel says it.
#pragma once

#include <unistd.h>

#include <fstream>
#include <string>

namespace gpurx::test {

// It sleeps in a system call, whichever.
[[nodiscard]] inline bool is_asleep(pid_t thread)
{
    std::ifstream stat{"/proc/self/task/" + std::to_string(thread) + "/stat"};
    std::string line;
    std::getline(stat, line);
    auto const name_end = line.rfind(") ");  // a name may hold anything
    return name_end != std::string::npos && line.compare(name_end + 2, 1, "S") == 0;
}

}  // namespace gpurx::test
