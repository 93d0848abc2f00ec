// SPDX-License-Identifier: Apache-2.0
//
// Sockets that programs which are executed do not get (FD_CLOEXEC). Asio makes its own without the flag.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <vector>

#include <gpurx/error.hpp>

namespace gpurx::ingest::detail {

// As open() of Asio's.
void open_private(asio::ip::tcp::socket& what, asio::ip::tcp const& protocol, error_code& code);
void open_private(asio::ip::tcp::acceptor& what, asio::ip::tcp const& protocol, error_code& code);
// Of a socket that Asio has accepted.
void make_private(asio::ip::tcp::socket& what) noexcept;

// Connects to the first of `to` that answers, one after the other. Errors: that of the last; not_found if there is
// none; operation_aborted if `what` was closed meanwhile, and no further one is tried then.
[[nodiscard]] asio::awaitable<error_code> async_connect_private(asio::ip::tcp::socket& what,
                                                                std::vector<asio::ip::tcp::endpoint> const& to);

}  // namespace gpurx::ingest::detail
