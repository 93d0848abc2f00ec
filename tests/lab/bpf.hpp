// SPDX-License-Identifier: Apache-2.0
#pragma once

// The system call bpf(), as tests of the lab need it.

#include <linux/bpf.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>

#include "base/syscalls.hpp"

namespace gpurx::lab {

// A descriptor, or an empty one with errno. The verifier gives up with EAGAIN if a signal is pending, and so does what
// a ring of io_uring leaves for its thread after its end: both pass.
inline detail::unique_fd bpf(bpf_cmd command, bpf_attr& attributes)
{
    long result = -1;
    for (int attempt = 0; attempt < 100; ++attempt) {
        result = ::syscall(SYS_bpf, command, &attributes, sizeof attributes);
        if (result >= 0 || errno != EAGAIN)
            break;
    }
    return detail::unique_fd{static_cast<int>(result)};
}

}  // namespace gpurx::lab
