// SPDX-License-Identifier: Apache-2.0
//
// Making the socket of a flow. The descriptor is ours and not Asio's: see flow.hpp and receiver_state.hpp.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <string>

#include <gpurx/error.hpp>

#include "syscalls.hpp"

namespace gpurx::detail {

// A non-blocking TCP socket of the peer's address family.
[[nodiscard]] unique_fd open_tcp(asio::ip::tcp::endpoint const& peer, error_code& code);

// Binds the socket to the address that the route to `peer` begins at and to a free port, and returns both: a steering
// rule needs them before the first packet leaves.
[[nodiscard]] asio::ip::tcp::endpoint bind_towards(int socket, asio::ip::tcp::endpoint const& peer, error_code& code);

// Another descriptor of the same file.
[[nodiscard]] unique_fd duplicate(int fd, error_code& code);

// "10.77.0.1:5000", "[fd77::1]:5000"
[[nodiscard]] std::string to_string(asio::ip::tcp::endpoint const& end);

}  // namespace gpurx::detail
