// SPDX-License-Identifier: Apache-2.0
#include "syscall_filter.hpp"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/failure.hpp"

namespace gpurx::gpurxd {

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t this_architecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t this_architecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t this_architecture = 0;
#endif

// Numbers that this does not have, for headers may be older than the kernel.
constexpr std::uint32_t first_unknown = 471;
constexpr std::uint32_t call_process_mrelease = 448;

constexpr std::array<std::uint32_t, 37> denied{
    // other processes
    SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_pidfd_open, SYS_pidfd_send_signal,
    SYS_pidfd_getfd, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_process_madvise,
    call_process_mrelease, SYS_setpriority, SYS_ioprio_set, SYS_sched_setaffinity, SYS_sched_setscheduler,
    SYS_sched_setparam, SYS_sched_setattr, SYS_kcmp, SYS_move_pages,
    // other programs, and what would have others' rights
    SYS_execve, SYS_execveat, SYS_unshare, SYS_setns,
    // what belongs to a user and is no file
    SYS_keyctl, SYS_add_key, SYS_request_key, SYS_shmget, SYS_shmat, SYS_semget, SYS_msgget, SYS_mq_open,
    // other sockets, and all of that again by another way
    SYS_connect, SYS_socketpair, SYS_io_uring_setup, SYS_io_uring_enter};

class filter {
  public:
    void load(std::size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)); }
    void refuse(int error) { add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)); }
    void allow() { add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW); }
    // Skips so many of what follows if the comparison does not hold; or if it does.
    void unless(std::uint16_t comparison, std::uint32_t value, std::uint8_t skip)
    {
        add(static_cast<std::uint16_t>(BPF_JMP | comparison | BPF_K), value, 0, skip);
    }
    void when(std::uint16_t comparison, std::uint32_t value, std::uint8_t skip)
    {
        add(static_cast<std::uint16_t>(BPF_JMP | comparison | BPF_K), value, skip, 0);
    }

    // Of this thread, from now on. False: this kernel has none.
    [[nodiscard]] bool take_effect()
    {
        sock_fprog const program{.len = static_cast<unsigned short>(all_.size()), .filter = all_.data()};
        if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0)
            return true;
        if (errno == EINVAL || errno == ENOSYS)
            return false;
        detail::fail(errno, "give up", "system calls");
    }

  private:
    void add(std::uint16_t code, std::uint32_t value, std::uint8_t when = 0, std::uint8_t otherwise = 0)
    {
        all_.push_back({.code = code, .jt = when, .jf = otherwise, .k = value});
    }

    std::vector<sock_filter> all_;
};

// Arguments are of 64 bits; these are numbers of 32, of which the kernel looks at no more.
constexpr std::size_t first_argument =
    offsetof(seccomp_data, args) + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? sizeof(std::uint32_t) : 0);

}  // namespace

void lose_other_processes()
{
    if (this_architecture == 0)
        return;
    filter rules;
    rules.load(offsetof(seccomp_data, arch));
    rules.when(BPF_JEQ, this_architecture, 1);
    rules.refuse(ENOSYS);
    rules.load(offsetof(seccomp_data, nr));
    rules.unless(BPF_JGE, first_unknown, 1);
    rules.refuse(ENOSYS);
    for (auto const number : denied) {
        rules.unless(BPF_JEQ, number, 1);
        rules.refuse(EPERM);
    }
    // Of itself alone.
    rules.unless(BPF_JEQ, SYS_prlimit64, 3);
    rules.load(first_argument);
    rules.when(BPF_JEQ, 0, 7);
    rules.refuse(EPERM);
    // To ask the kernel of NICs, and no sockets of other programs.
    rules.unless(BPF_JEQ, SYS_socket, 5);
    rules.load(first_argument);
    rules.when(BPF_JEQ, AF_NETLINK, 3);
    rules.when(BPF_JEQ, AF_INET, 2);
    rules.when(BPF_JEQ, AF_INET6, 1);
    rules.refuse(EPERM);
    rules.allow();
    static_cast<void>(rules.take_effect());
}

}  // namespace gpurx::gpurxd
