// SPDX-License-Identifier: Apache-2.0
#include "rights.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/nsfs.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <ios>
#include <string>

#include "base/syscalls.hpp"

namespace gpurx::detail {

// The kernel shows the owner of a network namespace only to those who are in the user namespace that owns it, or above.
bool may_configure_nics()
{
    std::uint64_t effective = 0;
    std::ifstream status{"/proc/thread-self/status"};
    for (std::string word; status >> word;) {
        if (word == "CapEff:")
            status >> std::hex >> effective;
    }
    if ((effective >> CAP_NET_ADMIN & 1) == 0)
        return false;
    unique_fd const network{::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)};
    unique_fd const owner{network ? ::ioctl(network.get(), NS_GET_USERNS) : -1};
    return owner || (network && errno != EPERM);
}

}  // namespace gpurx::detail
