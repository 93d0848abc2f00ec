// SPDX-License-Identifier: Apache-2.0
//
// The owners of endpoints: addresses of the host, and sockets by the kernel's table and by sock_diag.
#include "endpoints.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstring>
#include <iterator>
#include <set>
#include <string_view>
#include <vector>

#include "base/syscalls.hpp"
#include "eventually.hpp"
#include "socket_checks.hpp"

using namespace gpurx::gpurxd;
using gpurx::asio::ip::make_address;
using gpurx::asio::ip::tcp;
using gpurx::detail::unique_fd;

namespace {

unique_fd listener_at(int family, std::uint16_t port)
{
    unique_fd made{::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_loopback;
    v6.sin6_port = htons(port);
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    v4.sin_port = htons(port);
    auto const bound = family == AF_INET ? ::bind(made.get(), reinterpret_cast<sockaddr*>(&v4), sizeof v4)
                                         : ::bind(made.get(), reinterpret_cast<sockaddr*>(&v6), sizeof v6);
    if (bound != 0 || ::listen(made.get(), 4096) != 0)
        return {};
    return made;
}

std::uint16_t port_of(unique_fd const& socket)
{
    sockaddr_in6 here{};  // the port is at the same place in both
    socklen_t size = sizeof here;
    REQUIRE(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&here), &size) == 0);
    return ntohs(here.sin6_port);
}

tcp::endpoint at(char const* address, std::uint16_t port)
{
    return {gpurx::asio::ip::make_address(address), port};
}

std::uint64_t inode_of(unique_fd const& socket)
{
    struct stat info {};
    REQUIRE(::fstat(socket.get(), &info) == 0);
    return info.st_ino;
}

// Those that are this one: what others have on its port, or left there in TIME-WAIT, has another inode, or none.
std::vector<owned_socket> those_of(unique_fd const& socket, std::vector<owned_socket> const& all)
{
    std::vector<owned_socket> mine;
    std::ranges::copy_if(all, std::back_inserter(mine),
                         [inode = inode_of(socket)](auto const& one) { return one.inode == inode; });
    return mine;
}

// As this process's user's, too.
bool is_found_once(unique_fd const& socket, tcp::endpoint const& local, std::vector<owned_socket> const& all)
{
    auto const mine = those_of(socket, all);
    return mine.size() == 1 && mine[0].local == local && mine[0].uid == ::getuid();
}

bool are_on(std::set<std::uint16_t> const& ports, std::vector<owned_socket> const& all)
{
    return std::ranges::all_of(all, [&ports](auto const& one) { return ports.contains(one.local.port()); });
}

std::vector<host_address> const host{{"lo", make_address("127.0.0.1")},  {"lo", make_address("::1")},
                                     {"eth1", make_address("10.0.0.1")}, {"eth2", make_address("10.1.0.1")},
                                     {"eth1", make_address("fd00::1")},  {"eth1", make_address("fe80::1")},
                                     {"veth", make_address("fe80::2")},  {"veth", make_address("10.1.0.1")}};

std::vector<tcp::endpoint> ends(std::vector<char const*> const& addresses)
{
    std::vector<tcp::endpoint> all;
    for (auto const* const one : addresses)
        all.emplace_back(make_address(one), 80);
    return all;
}

std::vector<tcp::endpoint> heard_at(char const* address, bool also_v4 = false)
{
    return ends_of(host, {make_address(address), 80}, also_v4, "eth1");
}

}  // namespace

TEST_CASE("a port is not a user's own if another user has sockets on it")
{
    constexpr std::string_view table =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 812 1 0 100 0\n"
        "   1: 0100007F:1F90 0200007F:0050 06 00000000:00000000 00:00000000 00000000     0        0 0 3 0\n"
        "   2: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 13 1 0 100 0\n"
        "cut: 0100007F:1F90 000";
    std::set<std::uint16_t> const ports{22, 81, 8080};
    auto const all = sockets_in(table, ports);
    auto const end = at("127.0.0.1", 8080);
    auto const ssh = at("127.0.0.1", 22);
    CHECK(all == std::vector<owned_socket>{{end, 1000, 812}, {end, 0, 0}, {ssh, 0, 13}});
    CHECK(sockets_in(table, {81}).empty());
    CHECK(sockets_in("", ports).empty());
    CHECK_FALSE(find_other_user(all, end, 1000));
    CHECK(find_other_user(all, end, 7) == 1000U);
    CHECK(find_other_user(all, ssh, 1000) == 0U);
    CHECK_FALSE(find_other_user(all, at("127.0.0.1", 81), 7));
    std::set const ends{end, ssh, at("127.0.0.1", 81)};
    CHECK(find_shared(all, ends, 1000) == std::set{ssh});
    CHECK(find_shared(all, ends, 7) == std::set{ssh, end});
    CHECK(find_shared(all, {}, 7).empty());
}

TEST_CASE("only sockets of the same address, or of every address, share a port")
{
    auto const is_shared = [](tcp::endpoint const& others, tcp::endpoint const& mine, bool v6_only = false) {
        std::vector<owned_socket> const all{{.local = others, .uid = 3, .inode = 5, .v6_only = v6_only}};
        return find_other_user(all, mine, 4).has_value();
    };
    auto const v4 = at("10.0.0.1", 80);
    auto const v6 = at("fd00::1", 80);
    CHECK(is_shared(v4, v4));
    CHECK(is_shared(v6, v6));
    CHECK_FALSE(is_shared(at("127.0.0.1", 80), v4));
    CHECK_FALSE(is_shared(at("10.0.0.1", 81), v4));
    CHECK_FALSE(is_shared(v6, v4));
    CHECK(is_shared(at("0.0.0.0", 80), v4));
    CHECK_FALSE(is_shared(at("0.0.0.0", 80), v6));
    CHECK(is_shared(at("::", 80), v6));
    CHECK(is_shared(at("::", 80), v4));
    CHECK(is_shared(at("::", 80), v6, true));
    CHECK_FALSE(is_shared(at("::", 80), v4, true));
}

TEST_CASE("a table of IPv6 tells of both kinds of addresses")
{
    constexpr std::string_view table =
        "   0: 00000000000000000000000001000000:1F90 0:0000 0A 0:0 00:0 0  1000        0 812 1 0 100 0\n"
        "   1: 0000000000000000FFFF00000100007F:1F90 0:0000 01 0:0 00:0 0  1000        0 813 1 0 100 0\n"
        "   2: 00000000000000000000000000000000:1F90 0:0000 0A 0:0 00:0 0  1000        0 814 1 0 100 0\n"
        "   3: 0000000000000000000000000100000:1F90 0:0000 0A 0:0 00:0 0  1000        0 815 1 0 100 0\n";
    CHECK(sockets_in(table, {8080}) == std::vector<owned_socket>{{at("::1", 8080), 1000, 812},
                                                                 {at("127.0.0.1", 8080), 1000, 813},
                                                                 {at("::", 8080), 1000, 814}});
}

TEST_CASE("an answer of the kernel that is too short tells of no socket")
{
    inet_diag_msg said{};
    said.id.idiag_sport = htons(4711);
    said.idiag_uid = 3;
    said.idiag_inode = 5;
    auto const bytes = std::as_bytes(std::span{&said, 1});
    said.idiag_family = AF_INET;
    CHECK(read_socket(bytes) == owned_socket{at("0.0.0.0", 4711), 3, 5});
    CHECK_FALSE(read_socket(bytes.first(bytes.size() - 1)));
    CHECK_FALSE(read_socket({}));
}

TEST_CASE("the kernel tells on which address a socket is, and whether on all of IPv6 alone", "[native]")
{
    for (int const only : {0, 1}) {
        unique_fd const any{::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        sockaddr_in6 here{};
        here.sin6_family = AF_INET6;
        if (!any || ::setsockopt(any.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only) != 0 ||
            ::bind(any.get(), reinterpret_cast<sockaddr*>(&here), sizeof here) != 0)
            SKIP("there is no IPv6 here");
        REQUIRE(::listen(any.get(), 4) == 0);
        auto const found = those_of(any, sockets_on({port_of(any)}));
        REQUIRE(found.size() == 1);
        CHECK(found[0].local == at("::", port_of(any)));
        CHECK(found[0].v6_only == (only != 0));
    }
    auto const one = listener_at(AF_INET, 0);
    auto const found = those_of(one, sockets_on({port_of(one)}));
    REQUIRE(found.size() == 1);
    CHECK(found[0].local == at("127.0.0.1", port_of(one)));
}

TEST_CASE("the kernel tells of sockets that are bound, and do nothing yet")
{
    unique_fd const bound{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(bound.get(), reinterpret_cast<sockaddr*>(&here), sizeof here) == 0);
    auto const found = those_of(bound, sockets_on({port_of(bound)}));
    if (found.empty())
        SKIP("this kernel does not: Linux 6.8 does");
    CHECK(found[0].local == at("127.0.0.1", port_of(bound)));
    CHECK(found[0].uid == ::getuid());
}

TEST_CASE("the kernel tells of the sockets on these ports, and of no others")
{
    auto const one = listener_at(AF_INET, 0);
    auto const two = listener_at(AF_INET, 0);
    auto const six = listener_at(AF_INET6, 0);
    REQUIRE((one && two));
    std::set<std::uint16_t> asked{port_of(one)};
    if (six)
        asked.insert(port_of(six));
    // No answer is of one moment: while sockets of others come and go, the kernel may leave one out, or tell it twice.
    auto const are_found_once = [&](std::vector<owned_socket> const& found) {
        CHECK(are_on(asked, found));
        CHECK(those_of(two, found).empty());
        return is_found_once(one, at("127.0.0.1", port_of(one)), found) &&
               (!six || is_found_once(six, at("::1", port_of(six)), found));
    };
    CHECK(gpurx::test::eventually([&] { return are_found_once(sockets_on(asked)); }));
    CHECK(gpurx::test::eventually([&] { return are_found_once(sockets_on_by_table(asked)); }));
    CHECK(sockets_on({}).empty());
}

TEST_CASE("a filter for many ports is one that the kernel takes")
{
    // Between these ports and beyond them, and more than one message's.
    std::vector<unique_fd> mine;
    for (int i = 0; i < 40; ++i)
        mine.push_back(listener_at(AF_INET, 0));
    auto const other = listener_at(AF_INET, 0);
    REQUIRE(std::ranges::all_of(mine, [](auto const& one) { return bool{one}; }));
    REQUIRE(other);
    std::set<std::uint16_t> many;
    for (auto const& one : mine)
        many.insert(port_of(one));
    for (std::uint16_t port = 1; many.size() < most_ports + 50; ++port) {
        if (port != port_of(other))
            many.insert(port);
    }
    for (auto const& found : {sockets_on(many), sockets_on_by_table(many)}) {
        CHECK(are_on(many, found));
        for (auto const& one : mine)
            CHECK(those_of(one, found).size() == 1);
        CHECK(those_of(other, found).empty());
    }
}

// Run by its tag: what a look at one port costs with so many connections on the machine.
TEST_CASE("the cost of finding the users of a port", "[.cost]")
{
    using clock = std::chrono::steady_clock;
    auto const listener = listener_at(AF_INET, 0);
    REQUIRE(listener);
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    there.sin_port = htons(port_of(listener));
    std::vector<unique_fd> open;
    for (std::size_t const connections : {0U, 500U, 2000U, 8000U}) {
        while (open.size() < connections * 2) {
            unique_fd near{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
            REQUIRE(::connect(near.get(), reinterpret_cast<sockaddr*>(&there), sizeof there) == 0);
            open.push_back(std::move(near));
            open.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
            REQUIRE(open.back());
        }
        constexpr int rounds = 20;
        auto const cost = [&](auto look) {
            std::array<double, rounds> each{};
            for (auto& one : each) {
                auto const begin = clock::now();
                static_cast<void>(look());
                one = std::chrono::duration<double, std::micro>(clock::now() - begin).count();
            }
            std::ranges::sort(each);
            return each[rounds / 2];
        };
        fmt::print("{} sockets more: sock_diag {:.0f} us, /proc/net/tcp {:.0f} us\n", open.size(),
                   cost([] { return sockets_on({1}); }), cost([] { return sockets_on_by_table({1}); }));
    }
}

TEST_CASE("an address is this host's own if an interface has it")
{
    CHECK(is_own(host, make_address("10.0.0.1")));
    CHECK(is_own(host, make_address("::ffff:10.0.0.1")));
    CHECK(is_own(host, make_address("fe80::1%3")));
    CHECK_FALSE(is_own(host, make_address("10.0.0.2")));
    CHECK_FALSE(is_own(host, make_address("0.0.0.0")));
    CHECK_FALSE(is_own(host, make_address("::")));
}

TEST_CASE("a listener on every address hears at each that a NIC can bring packets for")
{
    CHECK(heard_at("0.0.0.0") == ends({"10.0.0.1", "10.1.0.1"}));
    CHECK(heard_at("::") == ends({"fd00::1", "fe80::1"}));
    CHECK(heard_at("::", true) == ends({"10.0.0.1", "10.1.0.1", "fd00::1", "fe80::1"}));
    CHECK(heard_at("::ffff:10.0.0.9") == ends({"10.0.0.9"}));
    CHECK(ends_of({}, {make_address("0.0.0.0"), 80}, false, "eth1").empty());
}
