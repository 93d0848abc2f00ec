// SPDX-License-Identifier: Apache-2.0
#include "rights.hpp"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

namespace gpurx::lab {

void set_net_admin(bool effective)
{
    constexpr auto bit = 1U << CAP_NET_ADMIN;
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
    ::syscall(SYS_capget, &header, sets.data());
    sets[0].effective = effective ? sets[0].effective | bit : sets[0].effective & ~bit;
    ::syscall(SYS_capset, &header, sets.data());
}

}  // namespace gpurx::lab
