// SPDX-License-Identifier: Apache-2.0
//
// The addresses of a name, within a time: the system's resolver has none.
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

// What does not come in time still keeps a thread of the system's resolver, until that gives up.
[[nodiscard]] asio::awaitable<resolution> async_resolve(asio::any_io_executor executor, std::string host,
                                                        std::string port, std::chrono::steady_clock::time_point until);

}  // namespace gpurx::ingest::detail
