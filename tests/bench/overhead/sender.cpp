// SPDX-License-Identifier: Apache-2.0
#include "sender.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <vector>

namespace bench {
namespace {

[[noreturn]] void die(char const* what)
{
    std::fprintf(stderr, "sender: %s: %s\n", what, std::strerror(errno));
    std::_Exit(1);
}

void enter(std::string const& network_namespace)
{
    int const fd = ::open(("/run/netns/" + network_namespace).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0)
        die(network_namespace.c_str());
    ::close(fd);
}

int connect_to(char const* address, std::uint16_t port)
{
    int const fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int const on = 1;
    sockaddr_in peer{};
    peer.sin_family = AF_INET;
    peer.sin_port = htons(port);
    if (fd < 0 || ::inet_pton(AF_INET, address, &peer.sin_addr) != 1 ||
        ::connect(fd, reinterpret_cast<sockaddr const*>(&peer), sizeof peer) != 0)
        die("connect");
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

}  // namespace

struct sender::command {
    enum class kind : std::uint8_t { connect, send, close, end } what;
    std::uint16_t port;
    char address[INET_ADDRSTRLEN];
    std::uint64_t bytes;
    std::uint64_t chunk;
    std::uint64_t pause_microseconds;
};

std::uint64_t monotonic_time() noexcept
{
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

sender::sender(std::string const& network_namespace)
{
    void* const shared = ::mmap(nullptr, sizeof *times_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        throw std::system_error{errno, std::system_category(), "mmap"};
    times_ = new (shared) write_times{};
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        throw std::system_error{errno, std::system_category(), "pipe2"};
    child_ = ::fork();
    if (child_ < 0)
        throw std::system_error{errno, std::system_category(), "fork"};
    if (child_ == 0) {
        ::close(ends[1]);
        serve(ends[0], network_namespace);
    }
    ::close(ends[0]);
    commands_ = ends[1];
}

// Closing the pipe would not do: children that were started later have it open.
sender::~sender()
{
    command what{};
    what.what = command::kind::end;
    static_cast<void>(::write(commands_, &what, sizeof what) == static_cast<ssize_t>(sizeof what));
    ::close(commands_);
    ::waitpid(child_, nullptr, 0);
    ::munmap(times_, sizeof *times_);
}

void sender::serve(int commands, std::string const& network_namespace)
{
    enter(network_namespace);
    int connection = -1;
    for (command what{}; ::read(commands, &what, sizeof what) == static_cast<ssize_t>(sizeof what);) {
        switch (what.what) {
            case command::kind::connect:
                connection = connect_to(what.address, what.port);
                break;
            case command::kind::send:
                send_all(connection, what);
                break;
            case command::kind::close:
                ::close(connection);
                break;
            case command::kind::end:
                std::_Exit(0);
        }
    }
    std::_Exit(0);
}

void sender::send_all(int fd, command const& what)
{
    static std::vector<char> const data(1u << 20, 'x');
    std::uint64_t in_chunk = 0;
    for (std::uint64_t sent = 0, chunks = 0; sent < what.bytes;) {
        std::uint64_t const size = std::min({what.bytes - sent, what.chunk - in_chunk, std::uint64_t{data.size()}});
        if (in_chunk == 0 && chunks < times_->size())
            (*times_)[chunks] = monotonic_time();
        ssize_t const done = ::send(fd, data.data(), size, MSG_NOSIGNAL);
        if (done < 0)
            die("send");
        sent += static_cast<std::uint64_t>(done);
        in_chunk += static_cast<std::uint64_t>(done);
        if (in_chunk == what.chunk) {
            in_chunk = 0;
            ++chunks;
            ::usleep(static_cast<useconds_t>(what.pause_microseconds));
        }
    }
}

void sender::tell(command const& what)
{
    if (::write(commands_, &what, sizeof what) != static_cast<ssize_t>(sizeof what))
        throw std::system_error{errno, std::system_category(), "write to the sender"};
}

void sender::connect(std::string const& address, std::uint16_t port)
{
    command what{};
    what.what = command::kind::connect;
    what.port = port;
    address.copy(what.address, sizeof what.address - 1);
    tell(what);
}

void sender::send(std::uint64_t bytes, std::uint64_t chunk, std::uint64_t pause_microseconds)
{
    command what{};
    what.what = command::kind::send;
    what.bytes = bytes;
    what.chunk = chunk;
    what.pause_microseconds = pause_microseconds;
    tell(what);
}

void sender::close()
{
    command what{};
    what.what = command::kind::close;
    tell(what);
}

}  // namespace bench
