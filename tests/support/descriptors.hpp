// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

#include <filesystem>
#include <set>
#include <string>

namespace gpurx::test {

// Of this process.
[[nodiscard]] inline std::set<int> open_descriptors()
{
    std::set<int> found;
    for (auto const& one : std::filesystem::directory_iterator{"/proc/self/fd"})
        found.insert(std::stoi(one.path().filename().string()));
    // Without the one that reads the directory.
    std::erase_if(found, [](int one) { return ::fcntl(one, F_GETFD) < 0; });
    return found;
}

// Those of this process that a program which it executes would have, too.
[[nodiscard]] inline std::set<int> inherited_descriptors()
{
    auto found = open_descriptors();
    std::erase_if(found, [](int one) { return (::fcntl(one, F_GETFD) & FD_CLOEXEC) != 0; });
    return found;
}

}  // namespace gpurx::test
