// SPDX-License-Identifier: Apache-2.0
#include "receive_queue.hpp"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include <fmt/format.h>

namespace bench {

int listen_with_large_buffer()
{
    int const fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int const on = 1, buffer = 1 << 29;
    sockaddr_in local{};
    local.sin_family = AF_INET;
    local.sin_port = htons(port);
    if (fd < 0 || ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer) != 0 ||
        ::bind(fd, reinterpret_cast<sockaddr const*>(&local), sizeof local) != 0 || ::listen(fd, 16) != 0)
        throw std::system_error{errno, std::system_category(), "listen"};
    return fd;
}

void wait_until_queued(int socket, std::uint64_t bytes)
{
    int queued = 0;
    for (int tries = 0; static_cast<std::uint64_t>(queued) < bytes; ++tries) {
        ::usleep(20'000);
        if (::ioctl(socket, SIOCINQ, &queued) != 0)
            throw std::system_error{errno, std::system_category(), "SIOCINQ"};
        if (tries == 3000)
            throw std::runtime_error{fmt::format("{} of {} bytes arrived within a minute", queued, bytes)};
    }
}

}  // namespace bench
