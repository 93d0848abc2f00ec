// SPDX-License-Identifier: Apache-2.0
#include "reception.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

#include "base/failure.hpp"
#include "policy_file.hpp"
#include "spawn.hpp"

namespace gpurx::gpurxd {

using detail::fail;
using detail::unique_fd;

namespace {

constexpr std::chrono::seconds between_lessons{2};
constexpr std::chrono::seconds between_looks{5};

// Nothing: it cannot be counted, which is no reason to serve nobody.
std::optional<shared_counters> try_to_count(std::string const& state_directory)
{
    try {
        return shared_counters::open(state_directory);
    } catch (system_error const& error) {
        fmt::print(stderr, "nothing is counted: {}\n", error.what());
        return std::nullopt;
    }
}

}  // namespace

reception::reception(asio::io_context& io, options chosen, unique_fd listening)
    : chosen_{std::move(chosen)},
      door_{io},
      signals_{io, SIGTERM, SIGINT, SIGCHLD},
      dead_{chosen_.where},
      next_look_{io},
      counts_{try_to_count(chosen_.where.state_directory)},
      next_write_{io}
{
    door_.assign(listening.release());
    door_.non_blocking(true);
    if (counts_ && !chosen_.metrics_directory.empty())
        metrics_.emplace(chosen_.metrics_directory, [this] { return counts_->read(); });
}

void reception::open()
{
    learn_names();
    asio::post(mending_, [where = chosen_.where] { mend(where); });
    wait_for_client();
    wait_for_signal();
    look_later();
    if (metrics_)
        write_later();
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
            next_look_.cancel();
            next_write_.cancel();
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
                counts_->count_refusal(request_kind::connect, reason_of(request_kind::connect, error.code()));
            log_line(refusals_, error.what());
        }
    }
}

void reception::learn_names()
{
    if (learning_ || std::chrono::steady_clock::now() - between_lessons < learned_)
        return;
    learning_ = true;
    asio::post(mending_, [this] {
        std::optional<policy_ids> now;
        try {
            now = resolve_ids(read_policy(chosen_.where.policy));
        } catch (system_error const&) {
            now.reset();  // clients are told
        }
        asio::post(door_.get_executor(), [this, now = std::move(now)] {
            known_ = now.value_or(known_);
            learned_ = std::chrono::steady_clock::now();
            learning_ = false;
        });
    });
}

void reception::start(unique_fd connection)
{
    learn_names();
    auto const from = peer_ids(connection.get());
    auto const match = match_of(known_, from);
    if (!served_.has_room(match, from.uid))
        fail(EUSERS, "take", fmt::format("a connection of user {}", from.uid));
    auto const pid = start_process({"gpurxd", "--policy", chosen_.where.policy, "--state-directory",
                                    chosen_.where.state_directory, "--connection", std::to_string(first_of_child)},
                                   connection.get());
    served_.add(pid, match, from.uid);
}

void reception::reap()
{
    bool any_killed = false;
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
        served_.remove(pid);
        any_killed = any_killed || !WIFEXITED(status);
    }
    if (any_killed)
        asio::post(mending_, [where = chosen_.where] { mend(where); });
}

void reception::look_later()
{
    next_look_.expires_after(between_looks);
    next_look_.async_wait([this](error_code code) {
        if (code || !door_.is_open())
            return;
        asio::post(mending_, [this] { dead_.look(); });
        look_later();
    });
}

void reception::write_later()
{
    if (!door_.is_open())
        return;
    next_write_.expires_after(metrics_file::between_writes);
    next_write_.async_wait([this](error_code code) {
        if (code)
            return;
        asio::post(writing_, [this] {
            metrics_->look();
            asio::post(door_.get_executor(), [this] { write_later(); });
        });
    });
}

}  // namespace gpurx::gpurxd
