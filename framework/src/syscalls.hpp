// SPDX-License-Identifier: Apache-2.0
//
// The system calls of the data plane, one forwarder each. Tests put a kernel of their own in the place of syscalls.cpp.
// All return what the system call returns and set errno.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

namespace gpurx::detail::sys {

[[nodiscard]] ssize_t recvmsg(int socket, msghdr* message, int flags) noexcept;
[[nodiscard]] int setsockopt(int socket, int level, int name, void const* value, socklen_t size) noexcept;
int shutdown(int socket, int how) noexcept;

}  // namespace gpurx::detail::sys
