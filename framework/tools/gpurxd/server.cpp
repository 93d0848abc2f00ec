// SPDX-License-Identifier: Apache-2.0
#include "server.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/failure.hpp"

namespace gpurx::gpurxd {

using detail::fail;
using detail::unique_fd;

namespace {

constexpr std::chrono::seconds policy_interval{2};
constexpr std::chrono::seconds recovery_interval{5};

constexpr int first_of_systemd = 3;
constexpr int most_of_systemd = 16;

// How many sockets systemd has opened.
int count_of_systemd()
{
    auto const* const pid = std::getenv("LISTEN_PID");    // NOLINT(concurrency-mt-unsafe)
    auto const* const count = std::getenv("LISTEN_FDS");  // NOLINT(concurrency-mt-unsafe)
    if (pid == nullptr || count == nullptr || std::to_string(::getpid()) != pid)
        return 0;
    return std::clamp(std::atoi(count), 0, most_of_systemd);  // NOLINT(cert-err34-c): what is no number is 0
}

// Others, such as those of an older gpurxd.socket, are closed.
unique_fd take_from_systemd(int count)
{
    unique_fd taken;
    for (int number = first_of_systemd; number < first_of_systemd + count; ++number) {
        unique_fd socket{number};
        ::fcntl(number, F_SETFD, FD_CLOEXEC);
        int type = -1;
        socklen_t size = sizeof type;
        if (::getsockopt(number, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET)
            taken = std::move(socket);
    }
    if (!taken)
        fail(EINVAL, "listen at", "the sockets of systemd without a ListenSequentialPacket",
             "use gpurxd.socket as installed");
    return taken;
}

// A file that nobody listens at any more was left by a daemon that was killed.
void remove_dead(sockaddr_un const& address, std::string const& path)
{
    unique_fd const caller{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (::connect(caller.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) == 0)
        fail(EADDRINUSE, "listen at", path, "another gpurxd listens there");
    if (errno == ECONNREFUSED)
        ::unlink(path.c_str());
}

unique_fd listen_at(std::string const& path)
{
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path)
        fail(ENAMETOOLONG, "listen at", path);
    std::ranges::copy(path, address.sun_path);
    remove_dead(address, path);
    unique_fd made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    if (!made || ::bind(made.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) != 0)
        fail(errno, "listen at", path);
    // Anybody may connect: the policy decides.
    if (::chmod(path.c_str(), 0666) != 0 || ::listen(made.get(), 64) != 0)
        fail(errno, "listen at", path);
    return made;
}

// The socket at which clients connect.
unique_fd listening_socket(std::string const& path)
{
    auto const count = count_of_systemd();
    return count > 0 ? take_from_systemd(count) : listen_at(path);
}

constexpr int first_of_child = 3;

// Starts this program again with these arguments; it has the descriptor as 3, and is in a group of its own: what a
// terminal sends this process is not for it. Throws system_error.
pid_t start_process(std::vector<std::string> command, int descriptor)
{
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (auto& argument : command)
        arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, descriptor, first_of_child);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    sigset_t none;
    ::sigemptyset(&none);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    pid_t pid = -1;
    auto const error = ::posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, arguments.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
        fail(error, "start", "a process");
    return pid;
}

// Nothing: it cannot be counted, which is no reason to serve nobody.
std::optional<shared_counters> open_counters(std::string const& state_directory)
{
    try {
        return shared_counters::open(state_directory);
    } catch (system_error const& error) {
        fmt::print(stderr, "metrics are off: {}\n", error.what());
        return std::nullopt;
    }
}

}  // namespace

server::server(asio::io_context& io, server_options chosen)
    : chosen_{std::move(chosen)},
      listener_{io, listening_socket(chosen_.socket).release()},
      signals_{io, SIGTERM, SIGINT, SIGCHLD},
      watch_{chosen_.paths},
      recovery_timer_{io},
      counts_{open_counters(chosen_.paths.state_directory)},
      metrics_timer_{io}
{
    listener_.non_blocking(true);
    if (counts_ && !chosen_.metrics_directory.empty())
        metrics_.emplace(chosen_.metrics_directory, [this] { return counts_->read(); });
}

void server::start()
{
    refresh_policy_ids();
    asio::post(recovery_pool_, [paths = chosen_.paths] { recover_all(paths); });
    wait_for_client();
    wait_for_signal();
    schedule_recovery();
    if (metrics_)
        schedule_metrics();
}

void server::wait_for_client()
{
    listener_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code code) {
        if (code)
            return;
        accept_all();
        wait_for_client();
    });
}

void server::wait_for_signal()
{
    signals_.async_wait([this](error_code code, int signal) {
        if (code)
            return;
        if (signal != SIGCHLD) {
            listener_.close();
            recovery_timer_.cancel();
            metrics_timer_.cancel();
            return;
        }
        reap();
        wait_for_signal();
    });
}

void server::accept_all()
{
    for (;;) {
        unique_fd connection{::accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC)};
        if (!connection)
            return;
        if (counts_)
            counts_->count_connection();
        try {
            start_process_for(std::move(connection));
        } catch (system_error const& error) {
            if (counts_)
                counts_->count_refusal(request_kind::connect, reason_of(request_kind::connect, error.code()));
            log_line(refusals_, error.what());
        }
    }
}

void server::refresh_policy_ids()
{
    if (refreshing_ || std::chrono::steady_clock::now() - policy_interval < refreshed_)
        return;
    refreshing_ = true;
    asio::post(recovery_pool_, [this] {
        std::optional<policy_ids> now;
        try {
            now = resolve_ids(read_policy(chosen_.paths.policy));
        } catch (system_error const&) {
            now.reset();  // clients are told
        }
        asio::post(listener_.get_executor(), [this, now = std::move(now)] {
            known_ = now.value_or(known_);
            refreshed_ = std::chrono::steady_clock::now();
            refreshing_ = false;
        });
    });
}

void server::start_process_for(unique_fd connection)
{
    refresh_policy_ids();
    auto const from = peer_ids(connection.get());
    auto const match = match_of(known_, from);
    if (!served_.has_room(match, from.uid))
        fail(EUSERS, "take", fmt::format("a connection of user {}", from.uid));
    auto const pid = start_process({"gpurxd", "--policy", chosen_.paths.policy, "--state-directory",
                                    chosen_.paths.state_directory, "--connection", std::to_string(first_of_child)},
                                   connection.get());
    served_.add(pid, match, from.uid);
}

void server::reap()
{
    bool any_killed = false;
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
        served_.remove(pid);
        any_killed = any_killed || !WIFEXITED(status);
    }
    if (any_killed)
        asio::post(recovery_pool_, [paths = chosen_.paths] { recover_all(paths); });
}

void server::schedule_recovery()
{
    recovery_timer_.expires_after(recovery_interval);
    recovery_timer_.async_wait([this](error_code code) {
        if (code || !listener_.is_open())
            return;
        asio::post(recovery_pool_, [this] { watch_.check(); });
        schedule_recovery();
    });
}

void server::schedule_metrics()
{
    if (!listener_.is_open())
        return;
    metrics_timer_.expires_after(metrics_file::between_writes);
    metrics_timer_.async_wait([this](error_code code) {
        if (code)
            return;
        asio::post(metrics_pool_, [this] {
            metrics_->look();
            asio::post(listener_.get_executor(), [this] { schedule_metrics(); });
        });
    });
}

}  // namespace gpurx::gpurxd
