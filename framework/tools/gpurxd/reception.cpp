// SPDX-License-Identifier: Apache-2.0
#include "reception.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "mend.hpp"
#include "nic/failure.hpp"

namespace gpurx::gpurxd {

using detail::fail;
using detail::unique_fd;

namespace {

constexpr int first_of_systemd = 3;
constexpr int connection_of_child = 3;
// Processes, which include those of clients that have not said yet what they want.
constexpr std::size_t most_served = 512;
constexpr std::size_t most_of_one_user = 64;

bool is_from_systemd()
{
    auto const* const pid = std::getenv("LISTEN_PID");    // NOLINT(concurrency-mt-unsafe)
    auto const* const count = std::getenv("LISTEN_FDS");  // NOLINT(concurrency-mt-unsafe)
    return pid != nullptr && count != nullptr && std::to_string(::getpid()) == pid && std::string{count} == "1";
}

// A file that nobody listens at any more was left by a daemon that was killed.
void remove_dead(sockaddr_un const& address, std::string const& path)
{
    unique_fd const caller{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (::connect(caller.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) == 0)
        fail(EADDRINUSE, "listen at", path, "another gpurxd does");
    if (errno == ECONNREFUSED)
        ::unlink(path.c_str());
}

uid_t user_at(unique_fd const& connection)
{
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        fail(errno, "ask who is at", "a connection");
    return peer.uid;
}

// Throws system_error.
pid_t start_process(std::vector<std::string> command, unique_fd const& connection)
{
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (auto& argument : command)
        arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, connection.get(), connection_of_child);
    ::posix_spawnattr_init(&attributes);
    // In a group of its own: what a terminal sends this process is not for those who are being served.
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    sigset_t none;
    ::sigemptyset(&none);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    pid_t pid = -1;
    auto const error = ::posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, arguments.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
        fail(error, "start", "a process for a client");
    return pid;
}

}  // namespace

unique_fd listening_socket(std::string const& path)
{
    if (is_from_systemd()) {
        ::fcntl(first_of_systemd, F_SETFD, FD_CLOEXEC);
        return unique_fd{first_of_systemd};
    }
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path)
        fail(ENAMETOOLONG, "listen at", path);
    std::ranges::copy(path, address.sun_path);
    remove_dead(address, path);
    unique_fd made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    if (!made || ::bind(made.get(), reinterpret_cast<sockaddr const*>(&address), sizeof address) != 0)
        fail(errno, "listen at", path);
    // Who may do what is the policy's business.
    if (::chmod(path.c_str(), 0666) != 0 || ::listen(made.get(), 64) != 0)
        fail(errno, "listen at", path);
    return made;
}

reception::reception(asio::io_context& io, options chosen, unique_fd listening)
    : chosen_{std::move(chosen)}, door_{io}, signals_{io, SIGTERM, SIGINT, SIGCHLD}
{
    door_.assign(listening.release());
    door_.non_blocking(true);
}

void reception::open()
{
    asio::post(mending_, [where = chosen_.where] { mend(where); });
    wait_for_client();
    wait_for_signal();
}

void reception::wait_for_client()
{
    door_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code code) {
        if (code)
            return;
        take_all();
        wait_for_client();
    });
}

void reception::wait_for_signal()
{
    signals_.async_wait([this](error_code code, int signal) {
        if (code)
            return;
        if (signal != SIGCHLD) {
            door_.close();
            return;
        }
        reap();
        wait_for_signal();
    });
}

void reception::take_all()
{
    for (;;) {
        unique_fd connection{::accept4(door_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC)};
        if (!connection)
            return;
        try {
            start(std::move(connection));
        } catch (system_error const& error) {
            fmt::print(stderr, "{}\n", error.what());
        }
    }
}

std::size_t reception::count_of(uid_t uid) const
{
    return static_cast<std::size_t>(std::ranges::count(served_, uid, [](auto const& one) { return one.second; }));
}

void reception::start(unique_fd connection)
{
    auto const uid = user_at(connection);
    if (served_.size() >= most_served || count_of(uid) >= most_of_one_user)
        fail(EUSERS, "take", fmt::format("a connection of user {}", uid));
    auto const pid = start_process({"gpurxd", "--policy", chosen_.where.policy, "--state-directory",
                                    chosen_.where.state_directory, "--connection", std::to_string(connection_of_child)},
                                   connection);
    served_.emplace(pid, uid);
}

void reception::reap()
{
    bool any_killed = false;
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
        served_.erase(pid);
        any_killed = any_killed || !WIFEXITED(status);
    }
    if (any_killed)
        asio::post(mending_, [where = chosen_.where] { mend(where); });
}

}  // namespace gpurx::gpurxd
