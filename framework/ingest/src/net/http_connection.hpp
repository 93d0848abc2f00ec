// SPDX-License-Identifier: Apache-2.0
//
// The HTTP client. A connection sends requests, reads headers to the host, and brings bodies to their places. Its
// errors are exceptions of type boost::system::system_error without an object: the caller adds it.
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

// Whether somebody else is so much faster than this, in bytes per second, that the connection is to end.
using speed_check = std::function<bool(double)>;

// What a server may take its time for.
struct connection_limits {
    std::chrono::milliseconds timeout;
    std::uint64_t min_speed = 0;  // bytes of a body per second
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();  // for all of it
    speed_check is_outrun = {};
};

// Belongs to one strand.
class http_connection : public std::enable_shared_from_this<http_connection> {
  public:
    // A connection that is slower than the limits allow is closed; what runs on it then ends with errc::gave_up.
    http_connection(asio::any_io_executor const& executor, std::unique_ptr<wire> below, connection_limits const& limits,
                    cuda_stream_ref stream);

    // To the first of them that answers.
    [[nodiscard]] asio::awaitable<void> async_connect(std::vector<asio::ip::tcp::endpoint> const& to);

    [[nodiscard]] asio::awaitable<void> async_send(std::string request);
    // The next header, within so much of the timeout. Interim answers (status 1xx) are left out.
    [[nodiscard]] asio::awaitable<answer> async_answer(unsigned looks = looks_per_timeout);

    // The same with its body, of so many bytes at most.
    [[nodiscard]] asio::awaitable<answer> async_whole_answer(std::string& body, std::size_t at_most);

    // The next bytes of a body, to their place. The first is an error if not all came; the second says how many did.
    using transferred = std::pair<error_code, std::size_t>;
    [[nodiscard]] asio::awaitable<transferred> async_body(memory_span to);
    [[nodiscard]] asio::awaitable<transferred> async_body(host_span to);
    [[nodiscard]] asio::awaitable<void> async_skip(std::uint64_t bytes);
    // What has come of a body of unknown length, or comes next: some of it, at most so much.
    [[nodiscard]] asio::awaitable<std::string> async_excerpt(std::size_t at_most);
    // The beginning of the body behind that header, as far as it comes: for messages.
    [[nodiscard]] asio::awaitable<std::string> async_beginning(answer of);

    // Nothing is under way for now, and the limits do not hold: no timer runs.
    void rest() noexcept;
    // It goes on. False: the peer has ended the connection meanwhile, or sent what nobody asked for.
    [[nodiscard]] bool wake();

    // Throws an error, in the words for it: `why`, if there are no others.
    void check(error_code code, std::string why = {}) const;

  private:
    [[nodiscard]] asio::awaitable<answer> read_header();
    [[nodiscard]] asio::awaitable<answer> read(answer_reader& reader);
    [[nodiscard]] asio::awaitable<error_code> read_early();
    void watch();
    // In words; empty: it is fast enough.
    [[nodiscard]] std::string look();
    [[nodiscard]] bool is_outrun() const;
    [[nodiscard]] std::size_t place_early(memory_span to, error_code& code);

    std::unique_ptr<wire> wire_;
    cuda_stream_ref stream_;
    connection_limits limits_;
    stall_detector stall_;
    asio::steady_timer next_look_;
    bool rests_ = false;
    std::string too_slow_;  // in words, once it has been closed for that

    boost::beast::flat_buffer early_{header_limit};  // what came along with a header
};

// A request with a small answer, on the host: for credentials and listings. A connection of its own, outside of any
// session.
struct exchange {
    std::string method = "GET";
    url to;
    header_fields fields;                     // besides Host
    tls_context tls = {};                     // for https; null: one of the system's authorities
    std::optional<url> proxy = {};            // that is asked to ask there
    std::chrono::milliseconds limit{};        // for all of it
    std::size_t most = std::size_t{1} << 20;  // bytes of the answer's body
};
struct exchanged {
    answer head;
    std::string body;
};
// Errors: what resolving and connecting report, as system_error without an object; errc::gave_up, bad_response.
[[nodiscard]] asio::awaitable<exchanged> async_exchange(exchange what);

}  // namespace gpurx::ingest::detail
