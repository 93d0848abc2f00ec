// SPDX-License-Identifier: Apache-2.0
//
// Resolution of names with a timeout, and sockets with FD_CLOEXEC. Asio makes sockets without the flag, and the
// system's resolver has no timeout.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <string>
#include <vector>

#include <gpurx/error.hpp>

namespace gpurx::ingest::detail {

struct resolution {
    error_code code;  // errc::gave_up: the time was over
    std::vector<asio::ip::tcp::endpoint> endpoints;
};

// After the timeout, the request still occupies a thread of the system's resolver until that gives up.
[[nodiscard]] asio::awaitable<resolution> async_resolve(asio::any_io_executor executor, std::string host,
                                                        std::string port, std::chrono::steady_clock::time_point until);

// As Asio's open().
void open_private(asio::ip::tcp::socket& what, asio::ip::tcp const& protocol, error_code& code);
void open_private(asio::ip::tcp::acceptor& what, asio::ip::tcp const& protocol, error_code& code);
// Sets the flag on a socket that Asio has accepted.
void make_private(asio::ip::tcp::socket& what) noexcept;

// Connects to the first of `to` that answers; tries one after the other. Errors: that of the last; not_found if `to` is
// empty; operation_aborted if `what` was closed meanwhile: it then tries no further one.
[[nodiscard]] asio::awaitable<error_code> async_connect_private(asio::ip::tcp::socket& what,
                                                                std::vector<asio::ip::tcp::endpoint> const& to);

}  // namespace gpurx::ingest::detail
