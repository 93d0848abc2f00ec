// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>

namespace gpurx::test {

// Of this process, and the one that it takes to count them.
[[nodiscard]] inline std::size_t open_descriptors()
{
    std::size_t count = 0;
    for ([[maybe_unused]] auto const& one : std::filesystem::directory_iterator{"/proc/self/fd"})
        ++count;
    return count;
}

}  // namespace gpurx::test
