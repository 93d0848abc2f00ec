// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "nic/failure.hpp"
#include "nic/open_nic.hpp"
#include "nic/process.hpp"
#include "port_users.hpp"
#include "socket_owners.hpp"

namespace gpurx::gpurxd {

using detail::fail;
using detail::unique_fd;

namespace {

constexpr auto dmabuf_file_system = 0x444d4142;  // DMA_BUF_MAGIC, which no header for programs has everywhere

std::string read_all(unique_fd const& file, std::string const& path)
{
    std::string text;
    char part[4096];
    for (;;) {
        auto const size = ::read(file.get(), part, sizeof part);
        if (size < 0)
            fail(errno, "read", path);
        if (size == 0)
            return text;
        text.append(part, static_cast<std::size_t>(size));
    }
}

template <class Value>
Value socket_option(int descriptor, int name)
{
    Value value{};
    socklen_t size = sizeof value;
    if (::getsockopt(descriptor, SOL_SOCKET, name, &value, &size) != 0)
        fail(errno, "steer", "a flow with a descriptor that is of no socket");
    return value;
}

asio::ip::address unmapped(asio::ip::address const& address)
{
    if (address.is_v6() && address.to_v6().is_v4_mapped())
        return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
    return address;
}

// That it is a TCP socket of this network namespace, bound to `local`.
void check_tcp_socket(int descriptor, asio::ip::tcp::endpoint const& local)
{
    if (descriptor < 0)
        fail(EBADF, "steer", "a flow without its socket");
    auto const domain = socket_option<int>(descriptor, SO_DOMAIN);
    if ((domain != AF_INET && domain != AF_INET6) || socket_option<int>(descriptor, SO_PROTOCOL) != IPPROTO_TCP)
        fail(EINVAL, "steer", "a flow with a socket that is not of TCP");
    if (socket_option<std::uint64_t>(descriptor, SO_NETNS_COOKIE) != detail::network_namespace())
        fail(EXDEV, "steer", "a flow of another network namespace than gpurxd's",
             "run a gpurxd in that network namespace");
    asio::ip::tcp::endpoint here;
    auto size = static_cast<socklen_t>(here.capacity());
    if (::getsockname(descriptor, here.data(), &size) != 0)
        fail(errno, "ask for the address of", "the flow's socket");
    here.resize(size);
    if (here.port() == 0 || here.port() != local.port() || unmapped(here.address()) != unmapped(local.address()))
        fail(EACCES, "steer", "a flow with a socket that is bound to another address");
}

// Refuses a port that somebody else has sockets on, too: the rule could reach them.
void check_port_users(std::uint16_t port, std::uint32_t uid)
{
    if (auto const other = find_other_user(sockets_on({port}), port, uid))
        fail(EACCES, "steer", fmt::format("port {}, on which user {} has sockets, too", port, *other),
             "use a port of your own");
}

std::string user_name(uid_t uid)
{
    char space[4096];
    passwd entry{};
    passwd* found = nullptr;
    return ::getpwuid_r(uid, &entry, space, sizeof space, &found) == 0 && found != nullptr ? found->pw_name : "";
}

std::string group_name(gid_t gid)
{
    char space[16384];
    group entry{};
    group* found = nullptr;
    return ::getgrgid_r(gid, &entry, space, sizeof space, &found) == 0 && found != nullptr ? found->gr_name : "";
}

std::vector<gid_t> other_groups(int connection)
{
    std::vector<gid_t> groups(64);
    for (;;) {
        auto size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
        auto const result = ::getsockopt(connection, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size);
        if (result != 0 && errno != ERANGE)
            fail(errno, "ask who is at", "the connection");
        groups.resize(size / sizeof(gid_t));
        if (result == 0)
            return groups;
    }
}

}  // namespace

policy read_policy(std::string const& path)
{
    unique_fd const file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (!file)
        fail(errno, "read", path, "write who may use which interface into it (man gpurxd)");
    struct stat what {};
    if (::fstat(file.get(), &what) != 0)
        fail(errno, "read", path);
    if ((what.st_mode & (S_IWGRP | S_IWOTH)) != 0 || (what.st_uid != 0 && what.st_uid != ::geteuid()))
        fail(EACCES, "trust", path, "let nobody but root write it");
    auto parsed = parse_policy(read_all(file, path));
    if (auto const* const damage = std::get_if<policy_damage>(&parsed))
        fail(EINVAL, "read", fmt::format("{} line {}: {}", path, damage->line, damage->what));
    return std::move(std::get<policy>(parsed));
}

caller caller_of(int connection)
{
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        fail(errno, "ask who is at", "the connection");
    caller result{.uid = peer.uid, .user = user_name(peer.uid), .gids = other_groups(connection), .groups = {}};
    result.gids.push_back(peer.gid);
    for (auto const gid : result.gids) {
        if (auto name = group_name(gid); !name.empty())
            result.groups.push_back(std::move(name));
    }
    return result;
}

machine::machine(places where, caller from) : where_{std::move(where)}, from_{std::move(from)}
{
    try {
        counts_.emplace(figure_table::open(where_.state_directory));
    } catch (system_error const& error) {
        fmt::print(stderr, "a client of user {} is not counted: {}\n", from_.uid, error.what());
    }
}

limits machine::admit(std::string_view interface)
{
    auto const found = find_limits(read_policy(where_.policy), from_, interface);
    if (!found)
        fail(EACCES, "open", fmt::format("{} for user {} ({})", interface, from_.uid, from_.user),
             fmt::format("allow it in {} on this machine", where_.policy));
    auto const index = ::if_nametoindex(std::string{interface}.c_str());
    if (index == 0)
        fail(errno, "open", std::string{interface});
    take_place(interface, index, found->clients);
    return *found;
}

void machine::take_place(std::string_view interface, unsigned index, unsigned clients)
{
    auto const directory = where_.state_directory + "-clients";
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
        fail(errno, "make", directory);
    for (unsigned i = 0; i < clients; ++i) {
        auto const path = fmt::format("{}/{}-{}-{}", directory, from_.uid, index, i);
        unique_fd file{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
        if (!file)
            fail(errno, "open", path);
        if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
            place_ = std::move(file);
            return;
        }
        if (errno != EWOULDBLOCK)
            fail(errno, "lock", path);
    }
    fail(EUSERS, "open", fmt::format("{} for user {} ({})", interface, from_.uid, from_.user),
         fmt::format("close one of the user's {} sessions on it, or allow more clients in {}", clients, where_.policy));
}

std::uint64_t machine::dmabuf_size(int descriptor)
{
    if (descriptor < 0)
        fail(EBADF, "open", "a session without a dmabuf");
    struct statfs what {};
    // Asked first: to ask anything of a file of somebody's own file system may take for ever.
    if (::fstatfs(descriptor, &what) != 0 || what.f_type != dmabuf_file_system)
        fail(EINVAL, "open", "a session with a descriptor that is of no dmabuf");
    auto const size = ::lseek(descriptor, 0, SEEK_END);
    if (size < 0)
        fail(errno, "ask for the size of", "the dmabuf");
    return static_cast<std::uint64_t>(size);
}

std::unique_ptr<detail::session_nic> machine::lease(detail::open_request const& what, int dmabuf,
                                                    std::function<void(std::string_view)> const& notice)
{
    error_code code;
    diagnostics why;
    auto nic = detail::open_nic({.interface = what.interface,
                                 .rx_queues = what.rx_queues,
                                 .rx_page_size = what.rx_page_size,
                                 .dmabuf_fd = dmabuf,
                                 .state_directory = where_.state_directory,
                                 .notice = notice},
                                code, why);
    if (!nic)
        throw system_error{code, std::move(why)};
    return nic;
}

void machine::check_flow(int descriptor, detail::steer_flow_request const& what)
{
    check_tcp_socket(descriptor, what.local);
    asio::ip::tcp::endpoint there;
    auto size = static_cast<socklen_t>(there.capacity());
    if (::getpeername(descriptor, there.data(), &size) == 0) {
        there.resize(size);
        if (there != what.remote)
            fail(EACCES, "steer", "a flow with the socket of another one");
    } else if (errno != ENOTCONN) {
        fail(errno, "ask for the peer of", "the flow's socket");
    }
    check_port_users(what.local.port(), from_.uid);
}

void machine::check_listener(int descriptor, detail::steer_port_request const& what)
{
    check_tcp_socket(descriptor, what.local);
    if (what.also_v4 && (!what.local.address().is_v6() || !what.local.address().is_unspecified()))
        fail(EINVAL, "steer", "a listener on one address, for IPv4 as well");
    check_port_users(what.local.port(), from_.uid);
}

std::set<std::uint16_t> machine::shared_of(std::set<std::uint16_t> const& ports)
{
    return find_shared_ports(sockets_on(ports), ports, from_.uid);
}

void machine::has_opened(client_figures who)
{
    who.uid = from_.uid;
    if (counts_)
        counts_->show(who);
}

void machine::has_rules(std::uint64_t now, std::uint64_t made, std::uint64_t taken_away) noexcept
{
    if (counts_)
        counts_->show_rules(now, made, taken_away);
}

void machine::has_refused(asked what, error_code code) noexcept
{
    if (counts_)
        counts_->count_refusal(what, reason_of(what, code));
}

}  // namespace gpurx::gpurxd
