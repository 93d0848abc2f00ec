// SPDX-License-Identifier: Apache-2.0
//
// One connection to an HTTP server: requests go out, and of what comes in headers go to the host and bodies to their
// places. Errors leave as exceptions of type boost::system::system_error, without an object: that is the caller's.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gpurx/receiver.hpp>

#include "answer.hpp"

namespace gpurx::ingest::detail {

class answer_parser;

// Belongs to one strand.
class http_connection : public std::enable_shared_from_this<http_connection> {
  public:
    // A connection on which nothing arrives for `timeout` is closed; what runs on it then ends with errc::gave_up.
    http_connection(asio::any_io_executor const& executor, rx_session& session, std::chrono::milliseconds timeout,
                    cuda_stream_ref stream);

    // To the first of them that answers.
    [[nodiscard]] asio::awaitable<void> async_connect(std::vector<asio::ip::tcp::endpoint> const& to);

    [[nodiscard]] asio::awaitable<void> async_send(std::string request);
    // The next header. Interim answers (status 1xx) are left out.
    [[nodiscard]] asio::awaitable<answer> async_answer();

    // The next bytes of a body, to their place. The first is an error if not all came; the second says how many did.
    using transferred = std::pair<error_code, std::size_t>;
    [[nodiscard]] asio::awaitable<transferred> async_body(device_span to);
    [[nodiscard]] asio::awaitable<transferred> async_body(host_span to);
    [[nodiscard]] asio::awaitable<void> async_skip(std::uint64_t bytes);
    // What has come of a body of unknown length, or comes next: some of it, at most so much.
    [[nodiscard]] asio::awaitable<std::string> async_excerpt(std::size_t at_most);

    // Throws an error, in the words for it: `why`, if there are no others.
    void check(error_code code, std::string why = {}) const;

  private:
    [[nodiscard]] answer taken_from(answer_parser const& parser, error_code code) const;
    void watch();
    [[nodiscard]] std::size_t place_early(device_span to, error_code& code);

    receiver receiver_;
    cuda_stream_ref stream_;
    asio::steady_timer silence_;
    std::chrono::milliseconds timeout_;
    std::uint64_t seen_ = 0;  // bytes, when the timer was last set
    bool timed_out_ = false;

    boost::beast::flat_buffer early_{header_limit};  // what came along with a header
};

}  // namespace gpurx::ingest::detail
