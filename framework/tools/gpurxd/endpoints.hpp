// SPDX-License-Identifier: Apache-2.0
//
// The owners of TCP endpoints: which addresses are this host's, and which users have sockets on a port. The kernel says
// the latter by sock_diag(7), or, without that, by its table in /proc/net/tcp. No I/O.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/error.hpp>

namespace gpurx::gpurxd {

// An address that an interface of this host has. A socket does not say that: any program may bind one to any address
// (IP_FREEBIND), also to that of a container or a guest behind this host, whose packets a rule would take away.
struct host_address {
    std::string interface;
    asio::ip::address address;  // without scope
};

[[nodiscard]] bool is_own(std::span<host_address const> all, asio::ip::address const& address);

// The endpoints at which a listener gets connections from a NIC: its address, or, if that is unspecified, all of the
// host's but loopback and link-local ones of other interfaces. `also_v4`: as in steer_port().
[[nodiscard]] std::vector<asio::ip::tcp::endpoint> ends_of(std::span<host_address const> all,
                                                           asio::ip::tcp::endpoint const& listener, bool also_v4,
                                                           std::string_view interface);

struct owned_socket {
    asio::ip::tcp::endpoint local;  // as IPv4 if it was mapped; perhaps of the unspecified address
    std::uint32_t uid = 0;
    std::uint64_t inode = 0;  // 0: no program has it any more
    bool v6_only = false;     // of the unspecified address of IPv6, without IPv4. False: or nobody knows

    friend bool operator==(owned_socket const&, owned_socket const&) = default;
};

// A netlink message that asks for TCP's sockets of a family (AF_INET, AF_INET6) with one of these local ports: all
// others stay in the kernel. TIME-WAIT is left out. Precondition: no more than most_ports.
inline constexpr std::size_t most_ports = 4096;
[[nodiscard]] std::vector<std::byte> socket_request(int family, std::set<std::uint16_t> const& ports);
// From the payload of an answer. Nothing: it is too short.
[[nodiscard]] std::optional<owned_socket> read_socket(std::span<std::byte const> payload);

// The sockets in a table of /proc that have one of these ports. Lines of another form are left out.
[[nodiscard]] std::vector<owned_socket> sockets_in(std::string_view table, std::set<std::uint16_t> const& ports);

// A user other than `uid` who has a socket that packets to `local` may be for: one on this address and port, or on the
// port of every address. Sockets that no program has any more are nobody's. Precondition: `local` is as on the wire.
[[nodiscard]] std::optional<std::uint32_t> find_other_user(std::span<owned_socket const> all,
                                                           asio::ip::tcp::endpoint const& local, std::uint32_t uid);
// The endpoints of `ends` that another user has sockets on.
[[nodiscard]] std::set<asio::ip::tcp::endpoint> find_shared(std::span<owned_socket const> all,
                                                            std::set<asio::ip::tcp::endpoint> const& ends,
                                                            std::uint32_t uid);

}  // namespace gpurx::gpurxd
