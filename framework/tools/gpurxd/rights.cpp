// SPDX-License-Identifier: Apache-2.0
#include "rights.hpp"

#include <linux/capability.h>
#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "syscall_filter.hpp"

namespace gpurx::gpurxd {

namespace {

// All that the first version of Landlock knows, which every later one does, too.
constexpr std::uint64_t all_of_files = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;

// Without a rule that allows something.
void lose_file_system()
{
    landlock_ruleset_attr const all{.handled_access_fs = all_of_files};
    detail::unique_fd const rules{static_cast<int>(::syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0))};
    // Not there, switched off, or not for this service.
    if (!rules && (errno == ENOSYS || errno == EOPNOTSUPP || errno == EPERM))
        return;
    if (!rules || ::syscall(SYS_landlock_restrict_self, rules.get(), 0) != 0)
        detail::fail(errno, "give up", "the file system");
}

}  // namespace

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

void keep_nothing()
{
    static_cast<void>(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    static_cast<void>(::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0));
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    constexpr std::array<__user_cap_data_struct, 2> none{};
    if (::syscall(SYS_capset, &header, none.data()) != 0)
        detail::fail(errno, "give up", "every capability");
    lose_file_system();
    lose_other_processes();
}

}  // namespace gpurx::gpurxd
