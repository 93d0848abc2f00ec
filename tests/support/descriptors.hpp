// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <filesystem>
#include <set>
#include <string>

namespace gpurx::test {

// Of this process, and the one that it takes to count them.
[[nodiscard]] inline std::size_t open_descriptors()
{
    std::size_t count = 0;
    for ([[maybe_unused]] auto const& one : std::filesystem::directory_iterator{"/proc/self/fd"})
        ++count;
    return count;
}

// Those of this process that a program which it executes would have, too.
[[nodiscard]] inline std::set<int> inherited_descriptors()
{
    std::set<int> found;
    for (auto const& one : std::filesystem::directory_iterator{"/proc/self/fd"}) {
        auto const fd = std::stoi(one.path().filename().string());
        if (auto const flags = ::fcntl(fd, F_GETFD); flags >= 0 && (flags & FD_CLOEXEC) == 0)
            found.insert(fd);
    }
    return found;
}

}  // namespace gpurx::test
