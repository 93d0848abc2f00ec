// SPDX-License-Identifier: Apache-2.0
//
// The sockets that gpurxd listens at: systemd's, or its own.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gpurx/error.hpp>

#include "base/syscalls.hpp"

namespace gpurx::gpurxd {

// Where metrics are answered: at as many as can be had. Without them clients are served all the same.
class metrics_doors {
  public:
    void add(detail::unique_fd listening) { open_.push_back(std::move(listening)); }
    // One that `open` makes, or why not, as a system_error.
    void add(std::function<detail::unique_fd()> open);
    // Whether there is one more now: what another process had may be free, such as that of a gpurxd which has just
    // ended. Why there is none was said the first time.
    bool open_missing();

    [[nodiscard]] std::vector<detail::unique_fd> const& listening() const noexcept { return open_; }

  private:
    std::vector<detail::unique_fd> open_;
    std::vector<std::function<detail::unique_fd()>> missing_;
};

struct doors {
    detail::unique_fd clients;
    metrics_doors metrics;
};

// Where nothing is opened by systemd: at these paths, the one for metrics empty if there is to be none. `loopback` is
// opened in either case. Throws system_error if there is nothing for clients: EADDRINUSE if somebody listens there.
[[nodiscard]] doors open_doors(std::string const& clients, std::string const& metrics,
                               std::optional<asio::ip::tcp::endpoint> const& loopback);

}  // namespace gpurx::gpurxd
