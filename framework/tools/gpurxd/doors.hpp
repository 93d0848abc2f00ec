// SPDX-License-Identifier: Apache-2.0
//
// The sockets that gpurxd listens at: systemd's, or its own.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <optional>
#include <string>
#include <vector>

#include <gpurx/error.hpp>

#include "syscalls.hpp"

namespace gpurx::gpurxd {

struct doors {
    detail::unique_fd clients;
    std::vector<detail::unique_fd> metrics;  // as many as could be had: without them clients are served all the same
};

// Where nothing is opened by systemd: at these paths, the one for metrics empty if there is to be none. `loopback` is
// opened in either case. Throws system_error if there is nothing for clients: EADDRINUSE if somebody listens there.
[[nodiscard]] doors open_doors(std::string const& clients, std::string const& metrics,
                               std::optional<asio::ip::tcp::endpoint> const& loopback);

}  // namespace gpurx::gpurxd
