// SPDX-License-Identifier: Apache-2.0
//
// The HTTP client. A connection sends requests, reads headers to the host, and delivers bodies to their places. It
// throws boost::system::system_error without an object; the caller adds the object.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gpurx/views.hpp>

#include "message.hpp"
#include "stall_detector.hpp"
#include "url.hpp"
#include "wire.hpp"

namespace gpurx::ingest::detail {

// Returns whether another connection is so much faster than this speed, in bytes per second, that this one must end.
using speed_check = std::function<bool(double)>;

// Time limits for a server.
struct connection_limits {
    std::chrono::milliseconds timeout;
    std::uint64_t min_speed = 0;  // bytes of a body per second
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();  // for all of it
    speed_check is_outrun = {};
};

// Belongs to one strand.
class http_connection : public std::enable_shared_from_this<http_connection> {
  public:
    // Closes the connection if it is slower than the limits allow. Its operation then fails with errc::gave_up.
    http_connection(asio::any_io_executor const& executor, std::unique_ptr<wire> below,
                    connection_limits const& limits);

    // Connects to the first endpoint that answers.
    [[nodiscard]] asio::awaitable<void> async_connect(std::vector<asio::ip::tcp::endpoint> const& to);

    [[nodiscard]] asio::awaitable<void> async_send(std::string request);
    // Reads the next header, within `looks` eighths of the timeout. It skips interim responses (status 1xx).
    [[nodiscard]] asio::awaitable<answer> async_answer(unsigned looks = looks_per_timeout);

    // The same with its body, of at most this number of bytes.
    [[nodiscard]] asio::awaitable<answer> async_whole_answer(std::string& body, std::size_t at_most);

    // Reads the next bytes of a body to their place; on a GPU, in the order of the stream. The first result is an error
    // if bytes are missing; the second is the number of bytes.
    using transferred = std::pair<error_code, std::size_t>;
    [[nodiscard]] asio::awaitable<transferred> async_body(memory_span to, cuda_stream_ref stream);
    [[nodiscard]] asio::awaitable<transferred> async_body(host_span to);
    [[nodiscard]] asio::awaitable<void> async_skip(std::uint64_t bytes);
    // Reads some bytes of a body of unknown length, at most this number.
    [[nodiscard]] asio::awaitable<std::string> async_excerpt(std::size_t at_most);
    // Reads the beginning of the body behind the header, as far as it arrives, for messages.
    [[nodiscard]] asio::awaitable<std::string> async_beginning(answer of);

    // The connection is idle: no limits apply, and no timer runs.
    void rest() noexcept;
    // Resumes. Returns false if the peer has ended the connection, or has sent unrequested bytes.
    [[nodiscard]] bool wake();

    // Throws `code` with its text, or with `why` if it has no other text.
    void check(error_code code, std::string why = {}) const;

  private:
    [[nodiscard]] asio::awaitable<answer> read_header();
    [[nodiscard]] asio::awaitable<answer> read(answer_reader& reader);
    [[nodiscard]] asio::awaitable<error_code> read_early();
    void watch();
    // Returns the reason as text; empty if the connection is fast enough.
    [[nodiscard]] std::string look();
    [[nodiscard]] bool is_outrun() const;
    [[nodiscard]] std::size_t place_early(memory_span to, cuda_stream_ref stream, error_code& code);

    std::unique_ptr<wire> wire_;
    connection_limits limits_;
    stall_detector stall_;
    asio::steady_timer next_look_;
    bool rests_ = false;
    std::string too_slow_;  // the reason, once the connection was closed for it

    boost::beast::flat_buffer early_{header_limit};  // bytes that came with a header
};

// A request with a small response, on the host, for credentials and listings. It has its own connection, outside of any
// session.
struct exchange {
    std::string method = "GET";
    url to;
    header_fields fields;                     // besides Host
    std::string body = {};                    // of PUT and POST
    tls_context tls = {};                     // for https; null: one of the system's authorities
    std::optional<url> proxy = {};            // that forwards the request
    std::chrono::milliseconds limit{};        // for all of it
    std::size_t most = std::size_t{1} << 20;  // most bytes of the response's body
};
struct exchanged {
    answer head;
    std::string body;
};
// Errors: those of resolving and connecting, as system_error without an object; errc::gave_up, bad_response.
[[nodiscard]] asio::awaitable<exchanged> async_exchange(exchange what);

}  // namespace gpurx::ingest::detail
