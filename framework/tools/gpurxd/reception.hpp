// SPDX-License-Identifier: Apache-2.0
//
// Takes connections and starts a process for each, this program again: what one client does, or makes the kernel do,
// holds up no other, and a client is served to its end though this process ends (docs/decisions).
#pragma once

#include <sys/types.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/thread_pool.hpp>
#include <string>
#include <unordered_map>

#include "options.hpp"
#include "syscalls.hpp"

namespace gpurx::gpurxd {

// A listening socket: systemd's, or one that is made at the path. Throws system_error: EADDRINUSE if somebody listens
// there.
[[nodiscard]] detail::unique_fd listening_socket(std::string const& path);

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
    [[nodiscard]] std::size_t count_of(uid_t uid) const;

    options chosen_;
    asio::posix::stream_descriptor door_;
    asio::signal_set signals_;
    asio::thread_pool mending_{1};
    std::unordered_map<pid_t, uid_t> served_;
};

}  // namespace gpurx::gpurxd
