// SPDX-License-Identifier: Apache-2.0
//
// Resolution of names with a timeout, connections to the first endpoint that answers, and sockets with FD_CLOEXEC. Asio
// makes sockets without the flag, and the system's resolver has no timeout.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
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

// Returns the endpoints in the order of RFC 8305: the families of addresses alternate, and the first stays the first.
// Those that lately did not answer are last. Pure.
[[nodiscard]] std::vector<asio::ip::tcp::endpoint> in_order_of_attempts(
    std::vector<asio::ip::tcp::endpoint> const& found,
    std::function<bool(asio::ip::tcp::endpoint const&)> const& is_silent);

// An endpoint of this process' peers that lately did not answer in time, though others of its name may have.
[[nodiscard]] bool is_silent(asio::ip::tcp::endpoint const& peer);
void note_silent(asio::ip::tcp::endpoint const& peer);

// Pause before an attempt to connect to the next endpoint, while the earlier attempts go on.
inline constexpr std::chrono::milliseconds attempt_delay{250};

// Connects to the first of several endpoints that answers, as RFC 8305 describes: each attempt begins attempt_delay
// after the previous one, or at once after its failure, and no attempt ends the others. Belongs to one strand.
class connection_race : public std::enable_shared_from_this<connection_race> {
  public:
    connection_race(asio::any_io_executor const& executor, std::vector<asio::ip::tcp::endpoint> const& to);

    // Call it once. Errors: that of the last; not_found if there is no endpoint; operation_aborted after close().
    [[nodiscard]] asio::awaitable<error_code> async_run();
    // Returns that error, also where the operation was cancelled too late.
    [[nodiscard]] error_code code() const noexcept { return code_; }
    // Precondition of both: async_run() has succeeded.
    [[nodiscard]] asio::ip::tcp::socket take() { return std::move(attempts_.at(winner_)); }
    [[nodiscard]] asio::ip::tcp::endpoint winner() const { return to_.at(winner_); }
    // Ends all attempts; call it before take().
    void close() noexcept;

  private:
    void begin_next();
    void ended(std::size_t attempt, error_code code);
    void finish(error_code code) noexcept;

    std::vector<asio::ip::tcp::endpoint> to_;
    std::deque<asio::ip::tcp::socket> attempts_;  // of the first endpoints
    std::size_t pending_ = 0;                     // of these
    std::size_t winner_ = SIZE_MAX;
    error_code code_;
    bool is_over_ = false;
    asio::steady_timer next_;
    asio::steady_timer over_;
};

}  // namespace gpurx::ingest::detail
