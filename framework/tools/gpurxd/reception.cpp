// SPDX-License-Identifier: Apache-2.0
#include "reception.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "mend.hpp"
#include "nic/failure.hpp"
#include "spawn.hpp"

namespace gpurx::gpurxd {

using detail::fail;
using detail::unique_fd;

namespace {

// Processes, which include those of clients that have not said yet what they want.
constexpr std::size_t most_served = 512;
constexpr std::size_t most_of_one_user = 64;
constexpr std::chrono::seconds between_starts{2};

uid_t user_at(unique_fd const& connection)
{
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        fail(errno, "ask who is at", "a connection");
    return peer.uid;
}

// Nothing: it cannot be counted, which is no reason to serve nobody.
std::optional<figure_table> try_to_count(std::string const& state_directory)
{
    try {
        return figure_table::open(state_directory);
    } catch (system_error const& error) {
        fmt::print(stderr, "nothing is counted: {}\n", error.what());
        return std::nullopt;
    }
}

}  // namespace

reception::reception(asio::io_context& io, options chosen, doors listening)
    : chosen_{std::move(chosen)},
      door_{io},
      signals_{io, SIGTERM, SIGINT, SIGCHLD},
      counts_{try_to_count(chosen_.where.state_directory)},
      metrics_doors_{std::move(listening.metrics)},
      rest_{io}
{
    door_.assign(listening.clients.release());
    door_.non_blocking(true);
}

void reception::open()
{
    asio::post(mending_, [where = chosen_.where] { mend(where); });
    wait_for_client();
    wait_for_signal();
    start_metrics();
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
            rest_.cancel();
            if (metrics_ > 0)
                ::kill(metrics_, SIGTERM);
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
        if (counts_)
            counts_->count_connection();
        try {
            start(std::move(connection));
        } catch (system_error const& error) {
            if (counts_)
                counts_->count_refusal(asked::connect, reason_of(asked::connect, error.code()));
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
    std::array const descriptors{connection.get()};
    auto const pid = start_process({"gpurxd", "--policy", chosen_.where.policy, "--state-directory",
                                    chosen_.where.state_directory, "--connection", std::to_string(first_of_child)},
                                   descriptors);
    served_.emplace(pid, uid);
}

void reception::reap()
{
    bool any_killed = false;
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid == metrics_) {
            metrics_ = -1;
            fmt::print(stderr, "the process that answers for metrics has ended; another one is started soon\n");
            start_metrics_later();
            continue;
        }
        served_.erase(pid);
        any_killed = any_killed || !WIFEXITED(status);
    }
    if (any_killed)
        asio::post(mending_, [where = chosen_.where] { mend(where); });
}

void reception::start_metrics()
{
    if (!counts_ || metrics_doors_.empty())
        return;
    try {
        // One that can only be read.
        unique_fd const figures{
            ::open(fmt::format("/proc/self/fd/{}", counts_->native_handle()).c_str(), O_RDONLY | O_CLOEXEC)};
        if (!figures)
            detail::fail(errno, "open", "the figures for metrics");
        std::vector<int> descriptors{figures.get()};
        for (auto const& door : metrics_doors_)
            descriptors.push_back(door.get());
        metrics_ =
            start_process({"gpurxd", "--answer-for-metrics", std::to_string(metrics_doors_.size())}, descriptors);
    } catch (system_error const& error) {
        fmt::print(stderr, "no metrics for now: {}\n", error.what());
        start_metrics_later();
    }
}

void reception::start_metrics_later()
{
    rest_.expires_after(between_starts);
    rest_.async_wait([this](error_code code) {
        if (!code && door_.is_open())
            start_metrics();
    });
}

}  // namespace gpurx::gpurxd
