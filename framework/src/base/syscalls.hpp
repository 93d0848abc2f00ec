// SPDX-License-Identifier: Apache-2.0
//
// An owned file descriptor, and forwarders of the data plane's system calls. Tests replace syscalls.cpp by their own
// kernel. All forwarders except page_size() return the system call's result and set errno.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <utility>

struct io_uring_params;

namespace gpurx::detail {

// An owned file descriptor. -1 is empty.
class unique_fd {
  public:
    unique_fd() noexcept = default;
    explicit unique_fd(int fd) noexcept : fd_{fd} {}
    unique_fd(unique_fd&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
    unique_fd& operator=(unique_fd&& other) noexcept
    {
        reset(std::exchange(other.fd_, -1));
        return *this;
    }
    ~unique_fd() { reset(); }

    [[nodiscard]] int get() const noexcept { return fd_; }
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    explicit operator bool() const noexcept { return fd_ >= 0; }

    void reset(int fd = -1) noexcept
    {
        if (fd_ >= 0)
            ::close(fd_);
        fd_ = fd;
    }

  private:
    int fd_ = -1;
};

}  // namespace gpurx::detail

namespace gpurx::detail::sys {

[[nodiscard]] ssize_t recvmsg(int socket, msghdr* message, int flags) noexcept;
[[nodiscard]] int setsockopt(int socket, int level, int name, void const* value, socklen_t size) noexcept;
int shutdown(int socket, int how) noexcept;
[[nodiscard]] int io_uring_setup(unsigned entries, io_uring_params* params) noexcept;
[[nodiscard]] int io_uring_enter(int ring, unsigned to_submit, unsigned least, unsigned flags) noexcept;
[[nodiscard]] int io_uring_register(int ring, unsigned opcode, void* argument, unsigned count) noexcept;
// Bytes of a page of the kernel: 4 KiB, or 64 KiB on some arm64 kernels.
[[nodiscard]] std::size_t page_size() noexcept;

}  // namespace gpurx::detail::sys
