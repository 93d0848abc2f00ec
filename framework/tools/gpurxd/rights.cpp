// SPDX-License-Identifier: Apache-2.0
#include "rights.hpp"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/failure.hpp"

namespace gpurx::gpurxd {

// Root's program gets all of its bounding set when it is started: so that is cut first, while that is allowed.
void keep_only_net_admin()
{
    for (unsigned long right = 0; ::prctl(PR_CAPBSET_READ, right, 0, 0, 0) >= 0; ++right) {
        if (right != CAP_NET_ADMIN)
            static_cast<void>(::prctl(PR_CAPBSET_DROP, right, 0, 0, 0));
    }
    static_cast<void>(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    constexpr std::uint32_t net_admin = 1U << CAP_NET_ADMIN;
    // A user who is not root passes it on to what is started by the ambient set, which takes it to be inheritable.
    std::array<__user_cap_data_struct, 2> const sets{
        {{.effective = net_admin, .permitted = net_admin, .inheritable = net_admin}, {}}};
    if (::syscall(SYS_capset, &header, sets.data()) != 0)
        detail::fail(errno, "keep", "CAP_NET_ADMIN", "start gpurxd as root, or by its systemd unit");
    static_cast<void>(::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_ADMIN, 0, 0));
}

}  // namespace gpurx::gpurxd
