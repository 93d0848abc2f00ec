// SPDX-License-Identifier: Apache-2.0
//
// Takes connections and starts a process for each, this program again: what one client does, or makes the kernel do,
// holds up no other, and a client is served to its end though this process ends (docs/decisions).
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <optional>

#include "base/syscalls.hpp"
#include "log.hpp"
#include "mend.hpp"
#include "metrics_file.hpp"
#include "options.hpp"
#include "policy.hpp"
#include "shared_counters.hpp"

namespace gpurx::gpurxd {

class reception {
  public:
    reception(asio::io_context& io, options chosen, detail::unique_fd listening);

    // Until SIGTERM or SIGINT; whoever is being served is served on.
    void open();

  private:
    void wait_for_client();
    void wait_for_signal();
    void take_all();
    void start(detail::unique_fd connection);
    // Processes that have ended.
    void reap();
    // Whom the policy lets in may have changed, and to ask who has a name may take long: it is done aside.
    void learn_names();
    // For clients that were killed.
    void look_later();
    // Aside, for the kernel may take long to say what it has counted.
    void write_later();

    options chosen_;
    asio::posix::stream_descriptor door_;
    asio::signal_set signals_;
    death_watch dead_;  // used by `mending_` alone
    asio::steady_timer next_look_;
    asio::thread_pool mending_{1};
    connection_quota served_;
    policy_ids known_{.anyone = true};  // until the policy was read
    bool learning_ = false;
    std::chrono::steady_clock::time_point learned_ = std::chrono::steady_clock::time_point::min();
    log_limit refusals_;
    std::optional<shared_counters> counts_;
    std::optional<metrics_file> metrics_;  // used by `writing_` alone
    asio::steady_timer next_write_;
    asio::thread_pool writing_{1};
};

}  // namespace gpurx::gpurxd
