// SPDX-License-Identifier: Apache-2.0
#include "syscalls.hpp"

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

std::size_t page_size() noexcept
{
    static auto const size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return size;
}

}  // namespace gpurx::detail::sys
