// SPDX-License-Identifier: Apache-2.0
//
// Counts the system calls of this program that make and remove rules: it has functions of the C library's names.
#pragma once

#include <cstdint>

namespace bench {

struct calls {
    std::uint64_t ethtool = 0;  // ioctls of a network interface
    std::uint64_t netlink = 0;  // requests
    std::uint64_t journal = 0;  // on files: open, lock, write
    std::uint64_t syncs = 0;

    friend calls operator-(calls const& left, calls const& right)
    {
        return {left.ethtool - right.ethtool, left.netlink - right.netlink, left.journal - right.journal,
                left.syncs - right.syncs};
    }
};
[[nodiscard]] calls calls_so_far();

}  // namespace bench
