// SPDX-License-Identifier: Apache-2.0
//
// gpurxd.prom, Prometheus' text of what gpurxd counts and what the kernel counts of the queues that it has given:
// node_exporter's textfile collector reads it. It is there for as long as somebody keeps it true.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "metrics.hpp"

namespace gpurx::gpurxd {

class metrics_file {
  public:
    using clock = std::chrono::steady_clock;

    static constexpr std::chrono::seconds between_writes{1};  // at least
    static constexpr std::chrono::seconds oldest{5};          // for the kernel counts on

    // Lets everybody read the directory, if that is this user's, and writes the file. `count` says what is counted now.
    // Throws system_error.
    metrics_file(std::string const& directory, std::function<daemon_metrics()> count,
                 clock::time_point now = clock::now());
    metrics_file(metrics_file const&) = delete;
    metrics_file& operator=(metrics_file const&) = delete;
    // Removes the file.
    ~metrics_file();

    // Writes it anew if something has changed, or it is old. What fails is said once, and tried again when the file
    // would be old.
    void look(clock::time_point now = clock::now()) noexcept;

  private:
    void write(daemon_metrics counted, clock::time_point now);

    std::string path_;
    std::function<daemon_metrics()> count_;
    daemon_metrics written_;
    clock::time_point when_;
    bool fails_ = false;
};

}  // namespace gpurx::gpurxd
