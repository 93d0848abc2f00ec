// SPDX-License-Identifier: Apache-2.0
#include "daemon_channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/failure.hpp"
#include "daemon_protocol.hpp"

namespace gpurx::detail {

namespace {

constexpr char channel_name[] = "gpurxd";

sockaddr_un address_of(std::string const& path)
{
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path)
        fail(ENAMETOOLONG, "connect to", path, "give the daemon's socket a shorter path");
    std::ranges::copy(path, address.sun_path);
    return address;
}

// For a single descriptor: CMSG_SPACE() would have room for two.
union control_space {
    cmsghdr header;
    std::array<std::byte, CMSG_SPACE(sizeof(int))> bytes;
};

// The first descriptor of the message; all others are closed.
unique_fd take_descriptor(msghdr& message, bool& excessive)
{
    unique_fd first;
    for (auto* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        auto const count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int number = -1;
            std::memcpy(&number, CMSG_DATA(part) + i * sizeof number, sizeof number);
            unique_fd one{number};
            excessive = excessive || first;
            if (!first)
                first = std::move(one);
        }
    }
    return first;
}

}  // namespace

daemon_channel::daemon_channel(std::string const& path, std::chrono::milliseconds timeout)
{
    auto const address = address_of(path);
    socket_ = unshared_fd{[] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }};
    if (!socket_)
        fail(errno, "connect to", path);
    auto const seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
    timeval const limit{.tv_sec = seconds.count(),
                        .tv_usec = std::chrono::duration_cast<std::chrono::microseconds>(timeout - seconds).count()};
    if (::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
        ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0)
        fail(errno, "set a time limit for", path);
    if (::connect(socket_.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) != 0)
        fail(errno, "connect to", path, "check that gpurxd runs, and that its socket admits this user");
}

void daemon_channel::send(std::span<std::byte const> message, int descriptor)
{
    // sendmsg() takes what it only reads as not const.
    iovec part{.iov_base = const_cast<std::byte*>(message.data()), .iov_len = message.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    control_space control{};
    if (descriptor >= 0) {
        header.msg_control = &control;
        header.msg_controllen = sizeof control;
        auto* const rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof descriptor);
        std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    }
    ssize_t sent = 0;
    do
        sent = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        fail(errno, "send to", channel_name);
}

std::optional<channel_message> daemon_channel::receive()
{
    channel_message result;
    result.bytes.resize(daemon_message_limit);
    iovec part{.iov_base = result.bytes.data(), .iov_len = result.bytes.size()};
    control_space control{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = &control;
    header.msg_controllen = CMSG_LEN(sizeof(int));
    ssize_t size = 0;
    do
        size = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size < 0)
        fail(errno, "receive from", channel_name);
    result.descriptor = take_descriptor(header, result.excessive);
    if (size == 0 && !result.descriptor)
        return std::nullopt;
    result.excessive = result.excessive || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
    result.bytes.resize(static_cast<std::size_t>(size));
    return result;
}

void daemon_channel::finish() noexcept
{
    ::shutdown(socket_.get(), SHUT_WR);
}

short daemon_channel::poll_for(short events, std::chrono::milliseconds limit)
{
    pollfd event{.fd = socket_.get(), .events = events, .revents = 0};
    auto const most = std::min<std::chrono::milliseconds::rep>(limit.count(), 1 << 30);
    int count = 0;
    do
        count = ::poll(&event, 1, most < 0 ? -1 : static_cast<int>(most));
    while (count < 0 && errno == EINTR);
    if (count < 0)
        fail(errno, "wait for", channel_name);
    return event.revents;
}

channel_wait daemon_channel::wait(std::chrono::milliseconds limit)
{
    auto const events = poll_for(POLLIN | POLLRDHUP, limit);
    if (events == 0)
        return channel_wait::timeout;
    // A request before the end is not served: nobody waits for it.
    return (events & (POLLHUP | POLLRDHUP | POLLERR)) != 0 ? channel_wait::closed : channel_wait::readable;
}

bool daemon_channel::wait_for_end(std::chrono::milliseconds limit)
{
    return poll_for(POLLRDHUP, limit) != 0;
}

}  // namespace gpurx::detail
