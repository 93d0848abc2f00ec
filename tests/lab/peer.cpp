// SPDX-License-Identifier: Apache-2.0
#include "peer.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <system_error>

#include "base/syscalls.hpp"
#include "pattern.hpp"

namespace gpurx::lab {

using namespace std::chrono_literals;
using detail::unique_fd;

namespace {

[[noreturn]] void fail(char const* what)
{
    throw std::system_error{errno, std::generic_category(), what};
}

unique_fd connect_to(tcp::endpoint const& to, std::atomic<bool> const& stop)
{
    for (int attempt = 0; attempt < 1200 && !stop; ++attempt) {
        unique_fd socket{::socket(to.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0)};
        if (::connect(socket.get(), to.data(), static_cast<socklen_t>(to.size())) == 0)
            return socket;
        std::this_thread::sleep_for(50ms);
    }
    return {};
}

tcp_info info_of(int socket)
{
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        fail("look at a connection");
    return info;
}

void wait_for_connection(int listener, std::atomic<bool> const& stop)
{
    pollfd waiting{.fd = listener, .events = POLLIN, .revents = 0};
    while (!stop && ::poll(&waiting, 1, 50) == 0) {
    }
}

}  // namespace

asio::ip::address near_address(family version)
{
    return asio::ip::make_address(version == family::v4 ? "10.77.0.1" : "fd77::1");
}

asio::ip::address far_address(family version)
{
    return asio::ip::make_address(version == family::v4 ? "10.77.0.2" : "fd77::2");
}

void enter_peer_namespace()
{
    unique_fd const where{::open("/run/netns/peer", O_RDONLY | O_CLOEXEC)};
    if (!where)
        fail("/run/netns/peer (these tests run in the lab: ./run lab -- ...)");
    if (::setns(where.get(), CLONE_NEWNET) != 0)
        fail("setns");
}

peer_sender::peer_sender(tcp::endpoint to, stream what, std::uint64_t pause_at)
    : what_{what}, pause_at_{pause_at}, thread_{[this, to] {
          enter_peer_namespace();
          if (auto const socket = connect_to(to, stop_))
              run(socket.get());
          else
              error_ = ECONNREFUSED;
          ended_ = true;
      }}
{}

peer_sender::peer_sender(family version, stream what) : what_{what}
{
    std::promise<tcp::endpoint> bound;
    auto where = bound.get_future();
    thread_ = std::thread{[this, version, bound = std::move(bound)]() mutable {
        enter_peer_namespace();
        tcp::endpoint here{far_address(version), 0};
        unique_fd const listener{::socket(here.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
        auto size = static_cast<socklen_t>(here.capacity());
        if (::bind(listener.get(), here.data(), static_cast<socklen_t>(here.size())) != 0 ||
            ::listen(listener.get(), 1) != 0 || ::getsockname(listener.get(), here.data(), &size) != 0)
            fail("listen in the peer's namespace");
        here.resize(size);
        bound.set_value(here);
        wait_for_connection(listener.get(), stop_);
        unique_fd const socket{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
        if (socket)
            run(socket.get());
        ended_ = true;
    }};
    endpoint_ = where.get();
}

peer_sender::~peer_sender()
{
    stop();
    if (thread_.joinable())
        thread_.join();
}

std::optional<int> peer_sender::error()
{
    if (thread_.joinable())
        thread_.join();
    return error_ == 0 ? std::nullopt : std::optional{error_};
}

bool peer_sender::is_connected()
{
    std::scoped_lock const lock{mutex_};
    return socket_ >= 0;
}

unsigned peer_sender::tries_in_vain()
{
    std::scoped_lock const lock{mutex_};
    return socket_ < 0 ? 0 : info_of(socket_).tcpi_retransmits;
}

bool peer_sender::stands_still()
{
    std::scoped_lock const lock{mutex_};
    if (socket_ < 0)
        return false;
    auto const info = info_of(socket_);
    int held_back = 0;
    if (::ioctl(socket_, SIOCOUTQNSD, &held_back) != 0)
        fail("look at a connection");
    return held_back > 0 && (info.tcpi_unacked == 0 || info.tcpi_retransmits > 1);
}

void peer_sender::stop() noexcept
{
    stop_ = true;
    std::scoped_lock const lock{mutex_};
    if (socket_ >= 0)
        ::shutdown(socket_, SHUT_RDWR);
}

void peer_sender::run(int socket) noexcept
{
    {
        std::scoped_lock const lock{mutex_};
        socket_ = socket;
    }
    send_all(socket);
    std::scoped_lock const lock{mutex_};
    socket_ = -1;
}

void peer_sender::send_all(int socket) noexcept
{
    constexpr std::uint64_t at_once = 256 << 10;
    if (::send(socket, &what_.seed, sizeof what_.seed, MSG_NOSIGNAL | MSG_MORE) < 0) {
        error_ = errno;
        return;
    }
    while (sent_ < what_.bytes && !stop_) {
        auto const here = sent_.load();
        auto const until = std::min(what_.bytes, pause_at_.load());
        if (here >= until) {
            std::this_thread::sleep_for(1ms);
            continue;
        }
        auto const bytes = pattern(what_.seed, here).first(std::min(at_once, until - here));
        auto const count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (count < 0) {
            error_ = errno;
            return;
        }
        sent_ += static_cast<std::uint64_t>(count);
    }
    // Until all of it has arrived: an early close would hide a receiver that has gone.
    ::shutdown(socket, SHUT_WR);
    char byte = 0;
    if (::recv(socket, &byte, 1, 0) < 0)
        error_ = errno;
}

}  // namespace gpurx::lab
