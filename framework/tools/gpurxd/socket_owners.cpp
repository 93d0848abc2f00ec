// SPDX-License-Identifier: Apache-2.0
#include "socket_owners.hpp"

#include <fcntl.h>
#include <linux/netlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <span>
#include <string>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "nic/netlink.hpp"

namespace gpurx::gpurxd {

using detail::fail;
using detail::unique_fd;

namespace {

constexpr char diag_name[] = "the kernel's sockets (sock_diag)";
constexpr std::size_t datagram_size = 32768;  // the largest that the kernel sends of a dump

// False: this kernel has no such question.
bool take_answers(unique_fd const& diag, std::vector<owned_socket>& found)
{
    std::vector<std::byte> space(datagram_size);
    for (;;) {
        auto const size = ::recv(diag.get(), space.data(), space.size(), 0);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0)
            fail(errno, "ask for", diag_name);
        detail::netlink::bytes_view rest{space.data(), static_cast<std::size_t>(size)};
        while (auto const message = detail::netlink::take_message(rest)) {
            if (auto const verdict = detail::netlink::read_verdict(*message)) {
                if (verdict->error == ENOENT || verdict->error == EOPNOTSUPP)
                    return false;
                if (verdict->error != 0)
                    fail(verdict->error, "ask for", diag_name);
                return true;
            }
            if (auto const one = read_socket(message->payload))
                found.push_back(*one);
        }
    }
}

bool dump(int family, std::set<std::uint16_t> const& ports, std::vector<owned_socket>& found)
{
    unique_fd const diag{::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)};
    if (!diag && errno == EPROTONOSUPPORT)
        return false;
    auto const request = socket_request(family, ports);
    if (!diag || ::send(diag.get(), request.data(), request.size(), 0) != static_cast<ssize_t>(request.size()))
        fail(errno, "ask for", diag_name);
    return take_answers(diag, found);
}

std::string read_all_of(std::string const& path)
{
    unique_fd const file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (!file && errno == ENOENT && path.ends_with('6'))
        return {};  // a kernel without IPv6
    if (!file)
        fail(errno, "read", path);
    std::string text;
    std::vector<char> part(1 << 16);
    for (;;) {
        auto const size = ::read(file.get(), part.data(), part.size());
        if (size < 0)
            fail(errno, "read", path);
        if (size == 0)
            return text;
        text.append(part.data(), static_cast<std::size_t>(size));
    }
}

}  // namespace

std::vector<owned_socket> sockets_on(std::set<std::uint16_t> const& ports)
{
    std::vector<owned_socket> found;
    for (auto next = ports.begin(); next != ports.end();) {
        std::set<std::uint16_t> some;
        for (; next != ports.end() && some.size() < most_ports; ++next)
            some.insert(*next);
        for (auto const family : {AF_INET, AF_INET6}) {
            if (!dump(family, some, found))
                return sockets_on_by_table(ports);
        }
    }
    return found;
}

std::vector<owned_socket> sockets_on_by_table(std::set<std::uint16_t> const& ports)
{
    std::vector<owned_socket> found;
    for (auto const* const path : {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}) {
        auto const some = sockets_in(read_all_of(path), ports);
        found.insert(found.end(), some.begin(), some.end());
    }
    return found;
}

}  // namespace gpurx::gpurxd
