// SPDX-License-Identifier: Apache-2.0
#include "feeder.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <system_error>
#include <vector>

namespace gpurx::bench {

namespace {

// One send: of a size that stays in a CPU's cache.
constexpr std::size_t piece = 256 << 10;

[[noreturn]] void die(char const* what)
{
    std::fprintf(stderr, "sender: %s: %s\n", what, std::strerror(errno));
    std::_Exit(1);
}

int connect_to(std::uint16_t port)
{
    auto const fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int const on = 1;
    sockaddr_in peer{};
    peer.sin_family = AF_INET;
    peer.sin_port = htons(port);
    peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr const*>(&peer), sizeof peer) != 0)
        die("connect");
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

// False: the other end has gone.
bool send_piece(int fd, std::uint64_t bytes)
{
    static std::vector<char> const data(piece, 'x');
    for (std::uint64_t sent = 0; sent < bytes;) {
        auto const done = ::send(fd, data.data(), bytes - sent, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return false;
        sent += static_cast<std::uint64_t>(done);
    }
    return true;
}

void send_all(int fd, std::uint64_t bytes, std::uint64_t rate)
{
    timespec due{};
    ::clock_gettime(CLOCK_MONOTONIC, &due);
    for (std::uint64_t sent = 0; sent < bytes;) {
        auto const size = std::min<std::uint64_t>(bytes - sent, piece);
        if (!send_piece(fd, size))
            return;
        sent += size;
        if (rate == 0)
            continue;
        auto const next = static_cast<std::uint64_t>(due.tv_nsec) + size * 1'000'000'000 / rate;
        due.tv_sec += static_cast<time_t>(next / 1'000'000'000);
        due.tv_nsec = static_cast<long>(next % 1'000'000'000);
        ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, nullptr);
    }
}

}  // namespace

struct feeder::command {
    enum class kind : std::uint8_t { connect, send, close } what;
    std::uint16_t port;
    std::uint64_t bytes;
    std::uint64_t rate;
};

feeder::feeder()
{
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
        throw std::system_error{errno, std::system_category(), "pipe2"};
    child_ = ::fork();
    if (child_ < 0)
        throw std::system_error{errno, std::system_category(), "fork"};
    if (child_ == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::prctl(PR_SET_TIMERSLACK, 1);
        ::close(ends[1]);
        serve(ends[0]);
    }
    ::close(ends[0]);
    commands_ = ends[1];
}

feeder::~feeder()
{
    ::close(commands_);
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
}

void feeder::serve(int commands)
{
    int connection = -1;
    for (command what{}; ::read(commands, &what, sizeof what) == static_cast<ssize_t>(sizeof what);) {
        switch (what.what) {
            case command::kind::connect:
                connection = connect_to(what.port);
                break;
            case command::kind::send:
                send_all(connection, what.bytes, what.rate);
                break;
            case command::kind::close:
                ::close(connection);
                break;
        }
    }
    std::_Exit(0);
}

void feeder::tell(command const& what) const
{
    if (::write(commands_, &what, sizeof what) != static_cast<ssize_t>(sizeof what))
        throw std::system_error{errno, std::system_category(), "write to the sender"};
}

void feeder::connect(std::uint16_t port)
{
    tell({.what = command::kind::connect, .port = port, .bytes = 0, .rate = 0});
}

void feeder::send(std::uint64_t bytes, std::uint64_t rate)
{
    tell({.what = command::kind::send, .port = 0, .bytes = bytes, .rate = rate});
}

void feeder::close()
{
    tell({.what = command::kind::close, .port = 0, .bytes = 0, .rate = 0});
}

}  // namespace gpurx::bench
