// SPDX-License-Identifier: Apache-2.0
#include "socket_checks.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <span>
#include <string>

#include "base/failure.hpp"
#include "base/syscalls.hpp"
#include "nic/flow_rule.hpp"
#include "nic/netlink.hpp"
#include "nic/process.hpp"

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
            fail(errno, "list", diag_name);
        detail::netlink::bytes_view rest{space.data(), static_cast<std::size_t>(size)};
        while (auto const message = detail::netlink::take_message(rest)) {
            if (auto const verdict = detail::netlink::read_verdict(*message)) {
                if (verdict->error == ENOENT || verdict->error == EOPNOTSUPP)
                    return false;
                if (verdict->error != 0)
                    fail(verdict->error, "list", diag_name);
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
        fail(errno, "list", diag_name);
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

template <class Value>
Value socket_option(int descriptor, int name)
{
    Value value{};
    socklen_t size = sizeof value;
    if (::getsockopt(descriptor, SOL_SOCKET, name, &value, &size) != 0)
        fail(errno, "steer", "a flow with a descriptor that is not a socket");
    return value;
}

// Refuses all but a TCP socket of this network namespace that is bound to `local`.
void check_tcp_socket(int descriptor, asio::ip::tcp::endpoint const& local)
{
    if (descriptor < 0)
        fail(EBADF, "steer", "a flow without its socket");
    auto const domain = socket_option<int>(descriptor, SO_DOMAIN);
    if ((domain != AF_INET && domain != AF_INET6) || socket_option<int>(descriptor, SO_PROTOCOL) != IPPROTO_TCP)
        fail(EINVAL, "steer", "a flow with a socket that is not a TCP socket");
    if (socket_option<std::uint64_t>(descriptor, SO_NETNS_COOKIE) != detail::network_namespace())
        fail(EXDEV, "steer", "a flow of another network namespace than gpurxd's",
             "run another gpurxd in that network namespace");
    asio::ip::tcp::endpoint here;
    auto size = static_cast<socklen_t>(here.capacity());
    if (::getsockname(descriptor, here.data(), &size) != 0)
        fail(errno, "get the address of", "the flow's socket");
    here.resize(size);
    if (here.port() == 0 || detail::on_the_wire(here) != detail::on_the_wire(local))
        fail(EACCES, "steer", "a flow with a socket that is bound to another address");
}

std::vector<host_address> host_addresses()
{
    ifaddrs* first = nullptr;
    if (::getifaddrs(&first) != 0)
        fail(errno, "get", "this host's addresses");
    std::vector<host_address> all;
    for (auto const* one = first; one != nullptr; one = one->ifa_next) {
        if (one->ifa_addr == nullptr)
            continue;
        auto const family = one->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6)
            continue;
        asio::ip::tcp::endpoint end{family == AF_INET ? asio::ip::tcp::v4() : asio::ip::tcp::v6(), 0};
        std::memcpy(end.data(), one->ifa_addr, end.size());
        all.push_back({one->ifa_name, detail::on_the_wire(end).address()});
    }
    ::freeifaddrs(first);
    return all;
}

// Refuses an end that is not this host's, or that somebody else has sockets on, too: the rule would reach them.
void check_end(std::span<host_address const> host, asio::ip::tcp::endpoint const& local, std::uint32_t uid)
{
    auto const port = local.port();
    if (!is_own(host, local.address()))
        fail(EACCES, "steer", fmt::format("{}, which is not an address of this host", local.address().to_string()),
             "bind to an address of an interface (ip address)");
    if (auto const other = find_other_user(sockets_on({port}), detail::on_the_wire(local), uid))
        fail(EACCES, "steer",
             fmt::format("{} port {}, on which user {} has sockets, too", local.address().to_string(), port, *other),
             "use a port without sockets of other users");
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

void check_flow_socket(int descriptor, detail::steer_flow_request const& what, std::uint32_t uid)
{
    check_tcp_socket(descriptor, what.local);
    asio::ip::tcp::endpoint there;
    auto size = static_cast<socklen_t>(there.capacity());
    if (::getpeername(descriptor, there.data(), &size) == 0) {
        there.resize(size);
        if (there != what.remote)
            fail(EACCES, "steer", "a flow with the socket of another flow");
    } else if (errno != ENOTCONN) {
        fail(errno, "get the peer of", "the flow's socket");
    }
    check_end(host_addresses(), what.local, uid);
}

std::vector<asio::ip::tcp::endpoint> check_listening_socket(int descriptor, detail::steer_port_request const& what,
                                                            std::uint32_t uid, std::string_view interface)
{
    check_tcp_socket(descriptor, what.local);
    if (what.also_v4 && (!what.local.address().is_v6() || !what.local.address().is_unspecified()))
        fail(EINVAL, "steer", "a listener on one address, for IPv4 as well");
    auto const host = host_addresses();
    auto ends = ends_of(host, what.local, what.also_v4, interface);
    if (ends.empty())
        fail(EADDRNOTAVAIL, "steer",
             "a listener on every address of this host, which has no address that a NIC can reach");
    for (auto const& end : ends)
        check_end(host, end, uid);
    return ends;
}

std::set<asio::ip::tcp::endpoint> lost_endpoints(std::set<asio::ip::tcp::endpoint> const& ends, std::uint32_t uid)
{
    std::set<std::uint16_t> ports;
    for (auto const& end : ends)
        ports.insert(end.port());
    auto lost = find_shared(sockets_on(ports), ends, uid);
    auto const host = host_addresses();
    std::ranges::copy_if(ends, std::inserter(lost, lost.end()),
                         [&](auto const& end) { return !is_own(host, end.address()); });
    return lost;
}

}  // namespace gpurx::gpurxd
