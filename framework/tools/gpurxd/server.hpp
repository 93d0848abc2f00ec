// SPDX-License-Identifier: Apache-2.0
//
// Takes connections and starts a process for each, this program again. A client, or what it makes the kernel do, holds
// up no other, and is served to its end though this process ends (docs/decisions).
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <optional>
#include <string>

#include "base/syscalls.hpp"
#include "log.hpp"
#include "metrics_file.hpp"
#include "policy_file.hpp"
#include "recovery.hpp"
#include "shared_counters.hpp"

namespace gpurx::gpurxd {

struct server_options {
    daemon_paths paths;
    std::string socket = "/run/gpurxd.sock";
    std::string metrics_directory;  // empty: no metrics
};

class server {
  public:
    // Listens at systemd's socket, or at the path. Throws system_error: EADDRINUSE if somebody listens there.
    server(asio::io_context& io, server_options chosen);

    // Until SIGTERM or SIGINT; whoever is being served is served on.
    void start();

  private:
    void wait_for_client();
    void wait_for_signal();
    void accept_all();
    void start_process_for(detail::unique_fd connection);
    // Handles processes that have ended.
    void reap();
    // The policy may have changed. It is read on another thread: to resolve names may take long.
    void refresh_policy_ids();
    // For clients that were killed.
    void schedule_recovery();
    // On another thread: the kernel may take long to say what it has counted.
    void schedule_metrics();

    server_options chosen_;
    asio::posix::stream_descriptor listener_;
    asio::signal_set signals_;
    recovery_watch watch_;  // used by `recovery_pool_` alone
    asio::steady_timer recovery_timer_;
    asio::thread_pool recovery_pool_{1};
    connection_quota served_;
    policy_ids known_{.anyone = true};  // until the policy was read
    bool refreshing_ = false;
    std::chrono::steady_clock::time_point refreshed_ = std::chrono::steady_clock::time_point::min();
    log_limit refusals_;
    std::optional<shared_counters> counts_;
    std::optional<metrics_file> metrics_;  // used by `metrics_pool_` alone
    asio::steady_timer metrics_timer_;
    asio::thread_pool metrics_pool_{1};
};

}  // namespace gpurx::gpurxd
