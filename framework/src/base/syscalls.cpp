// SPDX-License-Identifier: Apache-2.0
#include "syscalls.hpp"

#include <sys/syscall.h>

namespace gpurx::detail::sys {

ssize_t recvmsg(int socket, msghdr* message, int flags) noexcept
{
    return ::recvmsg(socket, message, flags);
}

int setsockopt(int socket, int level, int name, void const* value, socklen_t size) noexcept
{
    return ::setsockopt(socket, level, name, value, size);
}

int shutdown(int socket, int how) noexcept
{
    return ::shutdown(socket, how);
}

int io_uring_setup(unsigned entries, io_uring_params* params) noexcept
{
    return static_cast<int>(::syscall(SYS_io_uring_setup, entries, params));
}

int io_uring_enter(int ring, unsigned to_submit, unsigned least, unsigned flags) noexcept
{
    return static_cast<int>(::syscall(SYS_io_uring_enter, ring, to_submit, least, flags, nullptr, 0));
}

int io_uring_register(int ring, unsigned opcode, void* argument, unsigned count) noexcept
{
    return static_cast<int>(::syscall(SYS_io_uring_register, ring, opcode, argument, count));
}

std::size_t page_size() noexcept
{
    static auto const size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return size;
}

}  // namespace gpurx::detail::sys
