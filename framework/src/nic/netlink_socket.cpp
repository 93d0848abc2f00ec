// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/failure.hpp"
#include "netlink.hpp"

namespace gpurx::detail::netlink {

namespace {

constexpr char const* name = "netlink socket";
constexpr std::size_t largest_datagram = 16 << 20;  // no answer of the kernel comes near
constexpr int dump_attempts = 5;

void set_option(int fd, int option, int value)
{
    if (::setsockopt(fd, SOL_NETLINK, option, &value, sizeof(value)) != 0)
        fail(errno, "set option of", name);
}

sockaddr_nl own_address(int fd)
{
    sockaddr_nl address{};
    address.nl_family = AF_NETLINK;
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(fd, generic, size) != 0 || ::getsockname(fd, generic, &size) != 0)
        fail(errno, "bind", name);
    return address;
}

verdict verdict_of(message const& end)
{
    if (auto said = read_verdict(end))
        return *std::move(said);
    verdict unreadable;
    unreadable.error = EPROTO;
    return unreadable;
}

}  // namespace

socket::socket() : fd_{[] { return ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC); }}, buffer_(64 << 10)
{
    if (!fd_)
        fail(errno, "open", name);
    set_option(fd_.get(), NETLINK_EXT_ACK, 1);
    set_option(fd_.get(), NETLINK_CAP_ACK, 1);  // we know what we asked: the kernel need not repeat it
    port_ = own_address(fd_.get()).nl_pid;
}

void socket::send(bytes_view bytes)
{
    sockaddr_nl kernel{};
    kernel.nl_family = AF_NETLINK;
    ssize_t sent = -1;
    do {
        sent = ::sendto(fd_.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr const*>(&kernel),
                        sizeof(kernel));
    } while (sent < 0 && errno == EINTR);
    if (sent < 0)
        fail(errno, "send to", name);
}

bool socket::wait_readable(std::chrono::steady_clock::time_point deadline) const
{
    using namespace std::chrono;
    for (;;) {
        auto const left = ceil<milliseconds>(deadline - steady_clock::now());
        pollfd waiting{fd_.get(), POLLIN, 0};
        int const ready = ::poll(&waiting, 1, static_cast<int>(std::max<milliseconds::rep>(left.count(), 0)));
        if (ready >= 0)
            return ready > 0;
        if (errno != EINTR)
            fail(errno, "wait for", name);
    }
}

bytes_view socket::receive(std::chrono::steady_clock::time_point deadline)
{
    auto const failed = [](ssize_t result) {
        if (result < 0 && errno != EINTR && errno != EAGAIN)
            fail(errno, "receive from", name);
        return result < 0;
    };
    while (wait_readable(deadline)) {
        // MSG_TRUNC makes the kernel tell the datagram's true size.
        ssize_t const size = ::recv(fd_.get(), nullptr, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
        if (failed(size))
            continue;
        if (size > static_cast<ssize_t>(largest_datagram))
            fail(EMSGSIZE, "receive from", name);
        if (size > static_cast<ssize_t>(buffer_.size()))
            buffer_.resize(static_cast<std::size_t>(size));

        sockaddr_nl sender{};
        socklen_t length = sizeof(sender);
        ssize_t const received = ::recvfrom(fd_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT,
                                            reinterpret_cast<sockaddr*>(&sender), &length);
        // Other processes may write to us, too; only the kernel has port 0.
        if (!failed(received) && sender.nl_pid == 0)
            return bytes_view{buffer_}.first(static_cast<std::size_t>(received));
        if (std::chrono::steady_clock::now() > deadline)
            break;
    }
    return {};
}

verdict socket::exchange(request& what, on_answer const& answer, std::function<void()> const& restart)
{
    for (int attempt = 1;; ++attempt) {
        what.set_sequence(++sequence_);
        send(what.bytes());
        auto const deadline = std::chrono::steady_clock::now() + timeout;
        bool torn = false;
        std::optional<verdict> end;
        while (!end) {
            bytes_view datagram = receive(deadline);
            if (datagram.empty())
                fail(ETIMEDOUT, "wait for an answer from", name);
            while (auto const one = take_message(datagram)) {
                if (one->sequence != sequence_ || one->port != port_)
                    continue;
                torn = torn || (one->flags & NLM_F_DUMP_INTR) != 0;
                if (one->type == NLMSG_ERROR || one->type == NLMSG_DONE)
                    end = verdict_of(*one);
                else if (auto const data = read_generic(*one); data && one->type >= NLMSG_MIN_TYPE && answer)
                    answer(*data);
            }
        }
        if (end->error != 0 || !torn || attempt == dump_attempts)
            return *end;
        if (restart)
            restart();
    }
}

void socket::join(std::uint32_t group)
{
    set_option(fd_.get(), NETLINK_ADD_MEMBERSHIP, static_cast<int>(group));
}

void socket::take_notifications(on_answer const& each)
{
    auto const now = std::chrono::steady_clock::now();
    for (bytes_view datagram = receive(now); !datagram.empty(); datagram = receive(now)) {
        while (auto const one = take_message(datagram)) {
            if (auto const data = read_generic(*one); data && one->type >= NLMSG_MIN_TYPE)
                each(*data);
        }
    }
}

}  // namespace gpurx::detail::netlink
