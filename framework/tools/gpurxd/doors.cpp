// SPDX-License-Identifier: Apache-2.0
#include "doors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
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

int option_of(unique_fd const& socket, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    return ::getsockopt(socket.get(), SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

// Others than this machine's programs cannot ask there.
bool is_near(unique_fd const& socket)
{
    if (option_of(socket, SO_DOMAIN) == AF_UNIX)
        return true;
    asio::ip::tcp::endpoint here;
    auto size = static_cast<socklen_t>(here.capacity());
    if (::getsockname(socket.get(), here.data(), &size) != 0)
        return false;
    here.resize(size);
    return here.address().is_loopback();
}

void take_from_systemd(int count, doors& to)
{
    for (int number = first_of_systemd; number < first_of_systemd + count; ++number) {
        unique_fd socket{number};
        ::fcntl(number, F_SETFD, FD_CLOEXEC);
        if (option_of(socket, SO_TYPE) == SOCK_SEQPACKET)
            to.clients = std::move(socket);
        else if (is_near(socket))
            to.metrics.add(std::move(socket));
        else
            fmt::print(stderr, "no metrics at a socket of systemd's that others than this machine can reach\n");
    }
    if (!to.clients)
        fail(EINVAL, "listen at", "systemd's sockets, none of which is ListenSequentialPacket",
             "use gpurxd.socket as it was shipped");
}

// A file that nobody listens at any more was left by a daemon that was killed.
void remove_dead(sockaddr_un const& address, std::string const& path, int type)
{
    unique_fd const caller{::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (::connect(caller.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) == 0)
        fail(EADDRINUSE, "listen at", path, "another gpurxd does");
    if (errno == ECONNREFUSED)
        ::unlink(path.c_str());
}

unique_fd listen_at(std::string const& path, int type)
{
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path)
        fail(ENAMETOOLONG, "listen at", path);
    std::ranges::copy(path, address.sun_path);
    remove_dead(address, path, type);
    unique_fd made{::socket(AF_UNIX, type | SOCK_CLOEXEC, 0)};
    if (!made || ::bind(made.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) != 0)
        fail(errno, "listen at", path);
    // Who may do what is the policy's business.
    if (::chmod(path.c_str(), 0666) != 0 || ::listen(made.get(), 64) != 0)
        fail(errno, "listen at", path);
    return made;
}

unique_fd listen_at(asio::ip::tcp::endpoint const& here)
{
    auto const name = fmt::format("{} port {}", here.address().to_string(), here.port());
    unique_fd made{::socket(here.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0)};
    int const yes = 1;
    if (!made || ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        ::bind(made.get(), here.data(), static_cast<socklen_t>(here.size())) != 0 || ::listen(made.get(), 64) != 0)
        fail(errno, "listen at", name, "choose another address for metrics in the policy");
    return made;
}

}  // namespace

void metrics_doors::add(std::function<unique_fd()> open)
{
    try {
        open_.push_back(open());
    } catch (system_error const& error) {
        fmt::print(stderr, "no metrics there for now: {}\n", error.what());
        missing_.push_back(std::move(open));
    }
}

bool metrics_doors::open_missing()
{
    return std::erase_if(missing_, [this](auto const& open) {
               try {
                   open_.push_back(open());
                   return true;
               } catch (system_error const&) {
                   return false;
               }
           }) > 0;
}

doors open_doors(std::string const& clients, std::string const& metrics,
                 std::optional<asio::ip::tcp::endpoint> const& loopback)
{
    doors all;
    if (auto const count = count_of_systemd(); count > 0) {
        take_from_systemd(count, all);
    } else {
        all.clients = listen_at(clients, SOCK_SEQPACKET);
        if (!metrics.empty())
            all.metrics.add([metrics] { return listen_at(metrics, SOCK_STREAM); });
    }
    if (loopback)
        all.metrics.add([here = *loopback] { return listen_at(here); });
    return all;
}

}  // namespace gpurx::gpurxd
