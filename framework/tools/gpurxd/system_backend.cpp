// SPDX-License-Identifier: Apache-2.0
#include "system_backend.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/capability.h>
#include <net/if.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
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

unique_fd open_in(unique_fd const& directory, std::string const& name)
{
    unique_fd file{::openat(directory.get(), name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
    if (!file)
        fail(errno, "open", name);
    return file;
}

}  // namespace

// A program of root gets its whole bounding set at its start, so that set is reduced first, while it is permitted.
void keep_only_net_admin(char const* advice)
{
    for (unsigned long right = 0; ::prctl(PR_CAPBSET_READ, right, 0, 0, 0) >= 0; ++right) {
        if (right != CAP_NET_ADMIN)
            static_cast<void>(::prctl(PR_CAPBSET_DROP, right, 0, 0, 0));
    }
    static_cast<void>(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    constexpr std::uint32_t net_admin = 1U << CAP_NET_ADMIN;
    // A user other than root passes it to children by the ambient set, which needs it to be inheritable.
    std::array<__user_cap_data_struct, 2> const sets{
        {{.effective = net_admin, .permitted = net_admin, .inheritable = net_admin}, {}}};
    if (::syscall(SYS_capset, &header, sets.data()) != 0)
        fail(errno, "keep", "CAP_NET_ADMIN", advice);
    static_cast<void>(::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_ADMIN, 0, 0));
}

system_backend::system_backend(daemon_paths paths, caller from, int connection)
    : paths_{std::move(paths)},
      from_{std::move(from)},
      caller_name_{from_.user.empty() ? fmt::format("user {}", from_.uid)
                                      : fmt::format("user {} ({})", from_.uid, from_.user)},
      connection_{connection}
{
    try {
        counts_.emplace(shared_counters::open(paths_.state_directory));
    } catch (system_error const& error) {
        log_line(fmt::format("metrics omit a client of {}: {}", caller_name_, error.what()));
    }
}

system_backend::~system_backend()
{
    using std::chrono::duration_cast;
    if (opened_)
        log_line(fmt::format("{} has returned {} after {} s", caller_name_, interface_,
                             duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - *opened_).count()));
}

limits system_backend::admit(std::string_view interface)
{
    // An interface has other names, too; the policy has the one that `ip link` begins its line with.
    auto const index = ::if_nametoindex(std::string{interface}.c_str());
    std::array<char, IF_NAMESIZE> name{};
    if (index != 0 && ::if_indextoname(index, name.data()) != nullptr)
        interface = name.data();
    auto const found = find_limits(read_policy(paths_.policy), from_, interface);
    if (!found)
        fail(EACCES, "open", fmt::format("{} for {}", interface, caller_name_),
             fmt::format("add a line for it to {} on this machine", paths_.policy));
    if (index == 0)
        fail(ENODEV, "open", std::string{interface});
    take_session_slot(interface, index, found->clients);
    interface_ = interface;
    most_ = *found;
    return most_;
}

void system_backend::take_session_slot(std::string_view interface, unsigned index, unsigned clients)
{
    auto const directory = detail::open_state_directory(clients_directory(paths_.state_directory));
    for (unsigned i = 0; i < clients; ++i) {
        auto const path = fmt::format("{}-{}-{}", from_.uid, index, i);
        auto file = open_in(directory, path);
        if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
            slot_ = std::move(file);
            return;
        }
        if (errno != EWOULDBLOCK)
            fail(errno, "lock", path);
    }
    fail(EUSERS, "open", fmt::format("{} for {}", interface, caller_name_),
         fmt::format("close one of the user's {} sessions on it, or allow more clients in {}", clients, paths_.policy));
}

void system_backend::wait_for_open_rate()
{
    using std::chrono::milliseconds;
    using clock = rate_limit::clock;
    constexpr milliseconds longest{20'000};  // a client of ours waits for an answer no longer than half as much again
    auto const name = fmt::format("{}-opens", from_.uid);
    auto const file = open_in(detail::open_state_directory(clients_directory(paths_.state_directory)), name);
    if (::flock(file.get(), LOCK_EX) != 0)
        fail(errno, "lock", name);
    // The clock begins at the machine's start: 0 would be a session that a user opened then.
    constexpr auto never = clock::time_point::min().time_since_epoch().count();
    clock::rep last = never;
    if (::pread(file.get(), &last, sizeof last, 0) != static_cast<ssize_t>(sizeof last))
        last = never;
    auto const now = clock::now();
    rate_limit opens{most_.opens, std::chrono::minutes{1}, clock::time_point{clock::duration{last}}};
    auto const pause = std::chrono::ceil<milliseconds>(opens.next(now));
    if (pause > longest)
        fail(EAGAIN, "open",
             fmt::format("{} for {}, which has opened {} sessions a minute", interface_, caller_name_, most_.opens),
             fmt::format("open fewer sessions, or allow more opens in {}", paths_.policy));
    last = opens.used_until().time_since_epoch().count();
    if (::pwrite(file.get(), &last, sizeof last, 0) != static_cast<ssize_t>(sizeof last))
        fail(errno, "write", name);
    ::flock(file.get(), LOCK_UN);
    pollfd end{.fd = connection_, .events = POLLRDHUP, .revents = 0};
    if (pause.count() > 0 && ::poll(&end, 1, static_cast<int>(pause.count())) > 0)
        fail(ECONNRESET, "open", fmt::format("{} for {}, which has disconnected", interface_, caller_name_));
}

std::uint64_t size_of_dmabuf(int descriptor)
{
    if (descriptor < 0)
        fail(EBADF, "open", "a session without a dmabuf");
    struct statfs what {};
    // Asked first: to ask anything of a file of somebody's own file system may take for ever.
    if (::fstatfs(descriptor, &what) != 0 || what.f_type != dmabuf_file_system)
        fail(EINVAL, "open", "a session with a descriptor that is not a dmabuf");
    // The kernel does not ask: the NIC would write into what somebody has shown this user to read.
    if (auto const flags = ::fcntl(descriptor, F_GETFL); flags < 0 || (flags & O_ACCMODE) != O_RDWR)
        fail(EACCES, "open", "a session with a read-only dmabuf", "export it for writing (DRM_RDWR)");
    auto const size = ::lseek(descriptor, 0, SEEK_END);
    if (size < 0)
        fail(errno, "get the size of", "the dmabuf");
    return static_cast<std::uint64_t>(size);
}

std::unique_ptr<detail::session_nic> system_backend::lease(detail::open_request const& what, int dmabuf,
                                                           std::function<void(std::string_view)> const& notice)
{
    wait_for_open_rate();
    error_code code;
    diagnostics why;
    auto nic = detail::open_nic({.interface = interface_,
                                 .rx_queues = what.rx_queues,
                                 .rx_page_size = what.rx_page_size,
                                 .dmabuf_fd = dmabuf,
                                 .state_directory = paths_.state_directory,
                                 .rules_by_port_alone = false,
                                 .notice = notice},
                                code, why);
    if (!nic)
        throw system_error{code, std::move(why)};
    return nic;
}

void system_backend::check_flow(int descriptor, detail::steer_flow_request const& what)
{
    check_flow_socket(descriptor, what, from_.uid);
}

std::vector<asio::ip::tcp::endpoint> system_backend::check_listener(int descriptor,
                                                                    detail::steer_port_request const& what)
{
    return check_listening_socket(descriptor, what, from_.uid, interface_);
}

std::set<asio::ip::tcp::endpoint> system_backend::find_lost(std::set<asio::ip::tcp::endpoint> const& ends)
{
    return lost_endpoints(ends, from_.uid);
}

void system_backend::on_opened(client_metrics who)
{
    who.uid = from_.uid;
    who.interface = interface_;
    opened_ = std::chrono::steady_clock::now();
    log_line(fmt::format("{} has {} of {}, with {} of memory", caller_name_,
                         who.queues.size() == 1 ? fmt::format("queue {}", who.queues[0])
                                                : fmt::format("queues {}", fmt::join(who.queues, ", ")),
                         who.interface, detail::size_text(who.memory)));
    if (counts_)
        counts_->show(who);
}

void system_backend::on_rules_changed(std::uint64_t now, std::uint64_t made, std::uint64_t taken_away) noexcept
{
    if (taken_away > 0)
        log_line(refusals_,
                 fmt::format(
                     "{} has lost {} rules on {}: their addresses and ports are also another program's, or no socket's",
                     caller_name_, taken_away, interface_));
    if (counts_)
        counts_->show_rules(now, made, taken_away);
}

void system_backend::on_refused(request_kind what, error_code code, diagnostics const& why) noexcept
{
    if (what != request_kind::probe)
        log_line(refusals_, fmt::format("{} was refused: {}", caller_name_, describe(code, why)));
    if (counts_)
        counts_->count_refusal(what, reason_of(what, code));
}

}  // namespace gpurx::gpurxd
