// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grp.h>
#include <net/if.h>
#include <poll.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <system_error>
#include <utility>

#include "base/byte_size.hpp"
#include "base/failure.hpp"
#include "lease/device_journal.hpp"
#include "lease/queue_lease.hpp"
#include "nic/flow_rule.hpp"
#include "nic/process.hpp"
#include "socket_checks.hpp"

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

unique_fd open_in(unique_fd const& directory, std::string const& name)
{
    unique_fd file{::openat(directory.get(), name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
    if (!file)
        fail(errno, "open", name);
    return file;
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

std::optional<std::uint32_t> user_number(std::string const& name)
{
    char space[4096];
    passwd entry{};
    passwd* found = nullptr;
    if (::getpwnam_r(name.c_str(), &entry, space, sizeof space, &found) != 0 || found == nullptr)
        return std::nullopt;
    return found->pw_uid;
}

std::optional<std::uint32_t> group_number(std::string const& name)
{
    std::vector<char> space(1 << 16);
    group entry{};
    group* found = nullptr;
    if (::getgrnam_r(name.c_str(), &entry, space.data(), space.size(), &found) != 0 || found == nullptr)
        return std::nullopt;
    return found->gr_gid;
}

std::optional<std::uint32_t> number_in(std::string_view text)
{
    std::uint32_t value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && end == text.data() + text.size() ? std::optional{value} : std::nullopt;
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

std::variant<policy, std::vector<policy_damage>> look_at_policy(std::string const& path)
{
    unique_fd const file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (!file)
        fail(errno, "read", path, "write who may use which interface into it (man gpurxd)");
    struct stat what {};
    if (::fstat(file.get(), &what) != 0)
        fail(errno, "read", path);
    if ((what.st_mode & (S_IWGRP | S_IWOTH)) != 0 || (what.st_uid != 0 && what.st_uid != ::geteuid()))
        fail(EACCES, "trust", path, "let nobody but root write it");
    return parse_policy(read_all(file, path));
}

policy read_policy(std::string const& path)
{
    auto parsed = look_at_policy(path);
    if (auto const* const damage = std::get_if<std::vector<policy_damage>>(&parsed)) {
        auto const& first = damage->front();
        fail(EINVAL, "read", fmt::format("{} line {}: {}", path, first.line, first.what),
             fmt::format("gpurxd --check --policy {} names every line that is wrong", path));
    }
    return std::move(std::get<policy>(parsed));
}

policy_ids resolve_ids(policy const& known)
{
    policy_ids all;
    for (auto const& line : known.lines) {
        auto const number = number_in(line.name);
        if (line.kind == who::anyone) {
            all.anyone = true;
            continue;
        }
        // A name may look like a number, and a number be nobody's yet: find_limits() takes it for both.
        auto& ids = line.kind == who::user ? all.users : all.groups;
        if (number)
            ids.insert(*number);
        if (auto const id = line.kind == who::user ? user_number(line.name) : group_number(line.name))
            ids.insert(*id);
    }
    return all;
}

caller numbers_of(int connection)
{
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        fail(errno, "ask who is at", "the connection");
    caller result{.uid = peer.uid, .user = {}, .gids = other_groups(connection), .groups = {}};
    result.gids.push_back(peer.gid);
    return result;
}

caller caller_of(int connection)
{
    auto result = numbers_of(connection);
    result.user = user_name(result.uid);
    for (auto const gid : result.gids) {
        if (auto name = group_name(gid); !name.empty())
            result.groups.push_back(std::move(name));
    }
    return result;
}

machine::machine(places where, caller from, int connection)
    : where_{std::move(where)},
      from_{std::move(from)},
      who_{from_.user.empty() ? fmt::format("user {}", from_.uid) : fmt::format("user {} ({})", from_.uid, from_.user)},
      connection_{connection}
{
    try {
        counts_.emplace(figure_table::open(where_.state_directory));
    } catch (system_error const& error) {
        log_line(fmt::format("a client of {} is not counted: {}", who_, error.what()));
    }
}

machine::~machine()
{
    using std::chrono::duration_cast;
    if (opened_)
        log_line(fmt::format("{} has given back {} after {} s", who_, interface_,
                             duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - *opened_).count()));
}

limits machine::admit(std::string_view interface)
{
    // An interface has other names, too; the policy has the one that `ip link` begins its line with.
    auto const index = ::if_nametoindex(std::string{interface}.c_str());
    std::array<char, IF_NAMESIZE> name{};
    if (index != 0 && ::if_indextoname(index, name.data()) != nullptr)
        interface = name.data();
    auto const found = find_limits(read_policy(where_.policy), from_, interface);
    if (!found)
        fail(EACCES, "open", fmt::format("{} for {}", interface, who_),
             fmt::format("allow it in {} on this machine", where_.policy));
    if (index == 0)
        fail(ENODEV, "open", std::string{interface});
    take_place(interface, index, found->clients);
    interface_ = interface;
    most_ = *found;
    return most_;
}

void machine::take_place(std::string_view interface, unsigned index, unsigned clients)
{
    auto const directory = detail::open_state_directory(clients_directory(where_.state_directory));
    for (unsigned i = 0; i < clients; ++i) {
        auto const path = fmt::format("{}-{}-{}", from_.uid, index, i);
        auto file = open_in(directory, path);
        if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
            place_ = std::move(file);
            return;
        }
        if (errno != EWOULDBLOCK)
            fail(errno, "lock", path);
    }
    fail(EUSERS, "open", fmt::format("{} for {}", interface, who_),
         fmt::format("close one of the user's {} sessions on it, or allow more clients in {}", clients, where_.policy));
}

void machine::wait_for_turn()
{
    using std::chrono::milliseconds;
    using clock = rate_limit::clock;
    constexpr milliseconds longest{20'000};  // a client of ours waits for an answer no longer than half as much again
    auto const name = fmt::format("{}-opens", from_.uid);
    auto const file = open_in(detail::open_state_directory(clients_directory(where_.state_directory)), name);
    if (::flock(file.get(), LOCK_EX) != 0)
        fail(errno, "lock", name);
    clock::rep last = 0;
    if (::pread(file.get(), &last, sizeof last, 0) != static_cast<ssize_t>(sizeof last))
        last = 0;
    auto const now = clock::now();
    rate_limit opens{most_.opens, std::chrono::minutes{1}, clock::time_point{clock::duration{last}}};
    auto const pause = std::chrono::ceil<milliseconds>(opens.next(now));
    if (pause > longest)
        fail(EAGAIN, "open",
             fmt::format("{} for {}, who has opened {} sessions a minute", interface_, who_, most_.opens),
             fmt::format("open fewer, or allow more opens in {}", where_.policy));
    last = opens.used_until().time_since_epoch().count();
    if (::pwrite(file.get(), &last, sizeof last, 0) != static_cast<ssize_t>(sizeof last))
        fail(errno, "write", name);
    ::flock(file.get(), LOCK_UN);
    pollfd end{.fd = connection_, .events = POLLRDHUP, .revents = 0};
    if (pause.count() > 0 && ::poll(&end, 1, static_cast<int>(pause.count())) > 0)
        fail(ECONNRESET, "open", fmt::format("{} for {}, who has gone", interface_, who_));
}

std::uint64_t machine::dmabuf_size(int descriptor)
{
    if (descriptor < 0)
        fail(EBADF, "open", "a session without a dmabuf");
    struct statfs what {};
    // Asked first: to ask anything of a file of somebody's own file system may take for ever.
    if (::fstatfs(descriptor, &what) != 0 || what.f_type != dmabuf_file_system)
        fail(EINVAL, "open", "a session with a descriptor that is of no dmabuf");
    // The kernel does not ask: the NIC would write into what somebody has shown this user to read.
    if (auto const flags = ::fcntl(descriptor, F_GETFL); flags < 0 || (flags & O_ACCMODE) != O_RDWR)
        fail(EACCES, "open", "a session with a dmabuf that may only be read", "export it for writing (DRM_RDWR)");
    auto const size = ::lseek(descriptor, 0, SEEK_END);
    if (size < 0)
        fail(errno, "ask for the size of", "the dmabuf");
    return static_cast<std::uint64_t>(size);
}

std::unique_ptr<detail::session_nic> machine::lease(detail::open_request const& what, int dmabuf,
                                                    std::function<void(std::string_view)> const& notice)
{
    wait_for_turn();
    error_code code;
    diagnostics why;
    auto nic = detail::open_nic({.interface = interface_,
                                 .rx_queues = what.rx_queues,
                                 .rx_page_size = what.rx_page_size,
                                 .dmabuf_fd = dmabuf,
                                 .state_directory = where_.state_directory,
                                 .rules_by_port_alone = false,
                                 .notice = notice},
                                code, why);
    if (!nic)
        throw system_error{code, std::move(why)};
    return nic;
}

void machine::check_flow(int descriptor, detail::steer_flow_request const& what)
{
    check_flow_socket(descriptor, what, from_.uid);
}

std::vector<asio::ip::tcp::endpoint> machine::check_listener(int descriptor, detail::steer_port_request const& what)
{
    return check_listening_socket(descriptor, what, from_.uid, interface_);
}

std::set<asio::ip::tcp::endpoint> machine::lost_of(std::set<asio::ip::tcp::endpoint> const& ends)
{
    return lost_endpoints(ends, from_.uid);
}

void machine::has_opened(client_figures who)
{
    who.uid = from_.uid;
    who.interface = interface_;
    opened_ = std::chrono::steady_clock::now();
    log_line(fmt::format("{} has {} of {}, with {} of memory", who_,
                         who.queues.size() == 1 ? fmt::format("queue {}", who.queues[0])
                                                : fmt::format("queues {}", fmt::join(who.queues, ", ")),
                         who.interface, detail::size_text(who.memory)));
    if (counts_)
        counts_->show(who);
}

void machine::has_rules(std::uint64_t now, std::uint64_t made, std::uint64_t taken_away) noexcept
{
    if (taken_away > 0)
        log_line(refusals_, fmt::format("{} has lost {} rules on {}: the ends are somebody else's, too, or nobody's",
                                        who_, taken_away, interface_));
    if (counts_)
        counts_->show_rules(now, made, taken_away);
}

void machine::has_refused(asked what, error_code code, diagnostics const& why) noexcept
{
    if (what != asked::probe)
        log_line(refusals_, fmt::format("{} was refused: {}", who_, describe(code, why)));
    if (counts_)
        counts_->count_refusal(what, reason_of(what, code));
}

}  // namespace gpurx::gpurxd
