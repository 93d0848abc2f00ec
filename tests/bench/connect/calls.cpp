// SPDX-License-Identifier: Apache-2.0
#include "calls.hpp"

#include <linux/sockios.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstddef>

namespace bench {

namespace {

std::atomic<std::uint64_t> ethtool{0};
std::atomic<std::uint64_t> netlink{0};
std::atomic<std::uint64_t> journal{0};
std::atomic<std::uint64_t> syncs{0};

bool is_file(int fd)
{
    struct stat info {};
    return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

}  // namespace

calls calls_so_far()
{
    return {ethtool, netlink, journal, syncs};
}

}  // namespace bench

extern "C" {

int ioctl(int fd, unsigned long request, ...) noexcept
{
    std::va_list rest;
    va_start(rest, request);
    auto* const argument = va_arg(rest, void*);
    va_end(rest);
    bench::ethtool += request == SIOCETHTOOL || request == SIOCGIFNAME;
    return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
}

ssize_t sendto(int fd, void const* data, std::size_t size, int flags, sockaddr const* to, socklen_t length)
{
    bench::netlink += to != nullptr && to->sa_family == AF_NETLINK;
    return ::syscall(SYS_sendto, fd, data, size, flags, to, length);
}

ssize_t write(int fd, void const* data, std::size_t size)
{
    bench::journal += bench::is_file(fd);
    return ::syscall(SYS_write, fd, data, size);
}

int openat(int directory, char const* path, int flags, ...)
{
    std::va_list rest;
    va_start(rest, flags);
    auto const mode = va_arg(rest, unsigned);
    va_end(rest);
    ++bench::journal;
    return static_cast<int>(::syscall(SYS_openat, directory, path, flags, mode));
}

int flock(int fd, int operation) noexcept
{
    ++bench::journal;
    return static_cast<int>(::syscall(SYS_flock, fd, operation));
}

int fsync(int fd)
{
    ++bench::syncs;
    return static_cast<int>(::syscall(SYS_fsync, fd));
}

}  // extern "C"
