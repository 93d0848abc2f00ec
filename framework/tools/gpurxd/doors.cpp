// SPDX-License-Identifier: Apache-2.0
#include "doors.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/failure.hpp"

namespace gpurx::gpurxd {

using detail::fail;
using detail::unique_fd;

namespace {

constexpr int first_of_systemd = 3;
constexpr int most_of_systemd = 16;

// How many sockets systemd has opened.
int count_of_systemd()
{
    auto const* const pid = std::getenv("LISTEN_PID");    // NOLINT(concurrency-mt-unsafe)
    auto const* const count = std::getenv("LISTEN_FDS");  // NOLINT(concurrency-mt-unsafe)
    if (pid == nullptr || count == nullptr || std::to_string(::getpid()) != pid)
        return 0;
    return std::clamp(std::atoi(count), 0, most_of_systemd);  // NOLINT(cert-err34-c): what is no number is 0
}

// Others, such as those of an older gpurxd.socket, are closed.
unique_fd take_from_systemd(int count)
{
    unique_fd taken;
    for (int number = first_of_systemd; number < first_of_systemd + count; ++number) {
        unique_fd socket{number};
        ::fcntl(number, F_SETFD, FD_CLOEXEC);
        int type = -1;
        socklen_t size = sizeof type;
        if (::getsockopt(number, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET)
            taken = std::move(socket);
    }
    if (!taken)
        fail(EINVAL, "listen at", "systemd's sockets, none of which is ListenSequentialPacket",
             "use gpurxd.socket as it was shipped");
    return taken;
}

// A file that nobody listens at any more was left by a daemon that was killed.
void remove_dead(sockaddr_un const& address, std::string const& path)
{
    unique_fd const caller{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (::connect(caller.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) == 0)
        fail(EADDRINUSE, "listen at", path, "another gpurxd does");
    if (errno == ECONNREFUSED)
        ::unlink(path.c_str());
}

unique_fd listen_at(std::string const& path)
{
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path)
        fail(ENAMETOOLONG, "listen at", path);
    std::ranges::copy(path, address.sun_path);
    remove_dead(address, path);
    unique_fd made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    if (!made || ::bind(made.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) != 0)
        fail(errno, "listen at", path);
    // Who may do what is the policy's business.
    if (::chmod(path.c_str(), 0666) != 0 || ::listen(made.get(), 64) != 0)
        fail(errno, "listen at", path);
    return made;
}

}  // namespace

unique_fd open_door(std::string const& path)
{
    auto const count = count_of_systemd();
    return count > 0 ? take_from_systemd(count) : listen_at(path);
}

}  // namespace gpurx::gpurxd
