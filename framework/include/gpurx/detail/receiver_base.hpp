// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Base of receivers. Include receiver.hpp instead.
#pragma once

#include <array>
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <gpurx/detail/initiation.hpp>
#include <gpurx/error.hpp>
#include <gpurx/rx_buffer.hpp>
#include <gpurx/session.hpp>
#include <gpurx/stats.hpp>
#include <gpurx/use_awaitable.hpp>
#include <gpurx/views.hpp>

namespace gpurx {

namespace detail {

class receiver_state;
struct receiver_access;

using connect_handler = asio::any_completion_handler<void(error_code)>;
using connect_each_handler = asio::any_completion_handler<void(error_code, asio::ip::tcp::endpoint)>;
using receive_handler = asio::any_completion_handler<void(error_code, rx_buffer)>;
using read_handler = asio::any_completion_handler<void(error_code, std::size_t)>;

// Compiled once, in flow/receiver.cpp and flow/receive.cpp; the templates only erase the handler's type.
void start_connect(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint peer, completion_site site,
                   connect_handler handler);
void start_connect_each(std::shared_ptr<receiver_state> state, std::vector<asio::ip::tcp::endpoint> peers,
                        completion_site site, connect_each_handler handler);
void start_receive(std::shared_ptr<receiver_state> state, std::size_t at_least, std::size_t at_most,
                   completion_site site, receive_handler handler);

// The buffers of one send: as many as Asio passes to one system call. The next send takes the rest.
class send_buffers {
  public:
    using value_type = asio::const_buffer;
    using const_iterator = asio::const_buffer const*;

    template <class ConstBufferSequence>
    explicit send_buffers(ConstBufferSequence const& all)
    {
        auto const end = asio::buffer_sequence_end(all);
        for (auto at = asio::buffer_sequence_begin(all); at != end && count_ < each_.size(); ++at)
            each_[count_++] = *at;
    }

    [[nodiscard]] const_iterator begin() const noexcept { return each_.data(); }
    [[nodiscard]] const_iterator end() const noexcept { return each_.data() + count_; }

  private:
    std::array<asio::const_buffer, 64> each_;
    std::size_t count_ = 0;
};

// `own`: executor of a handler that has none.
void start_write(receiver_state& state, send_buffers const& data, completion_site const& site,
                 asio::any_io_executor const& own, read_handler handler);

[[nodiscard]] asio::ip::tcp::socket& socket_of(receiver_state& state) noexcept;

// Makes the exception of a failed co_await (use_awaitable.hpp).
[[nodiscard]] std::exception_ptr failure_of(std::shared_ptr<receiver_state> const& state, error_code code) noexcept;
// A receiver and the kind of its operation. Its why() may belong to another operation, refused or begun meanwhile.
enum class transfer : std::uint8_t { receive, read, write };
template <transfer Kind>
struct transfer_of {
    std::shared_ptr<receiver_state> state;
};
[[nodiscard]] std::exception_ptr failure_of(receiver_state const& state, transfer kind, error_code code) noexcept;
template <transfer Kind>
[[nodiscard]] std::exception_ptr failure_of(transfer_of<Kind> const& of, error_code code) noexcept
{
    return failure_of(*of.state, Kind, code);
}

// The token that the executor names (as_default_on), else this library's use_awaitable.
template <class Executor>
using default_token = std::conditional_t<std::is_void_v<asio::default_completion_token_t<Executor>>, use_awaitable_t,
                                         asio::default_completion_token_t<Executor>>;

}  // namespace detail

/// @brief Base of receivers: members that do not depend on the executor's type.
class receiver_base {
  public:
    /// @brief Returns whether the receiver is open.
    [[nodiscard]] bool is_open() const noexcept;

    /// @brief Adopts a connection that the program has accepted.
    ///
    /// Use an acceptor that was passed to rx_session::steer().
    ///
    /// The receiver delivers bytes that did not come through the session's queues too. It counts them as
    /// `stats::host_bytes`. The receiver takes the descriptor out of `accepted` and sets `FD_CLOEXEC`, unlike Asio. If
    /// the call fails, it closes the connection.
    ///
    /// @param accepted Connection to adopt.
    /// @param received Bytes that the program has read from `accepted`. The receiver copies them and delivers them
    ///   first, to reads and to async_receive(). They count as `stats::host_bytes`.
    /// @pre The receiver is not open.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - `asio::error::already_open`.
    /// - errc::already_running, errc::too_many_flows.
    /// - `asio::error::bad_descriptor`: the receiver was moved from.
    /// - The errors of `release` and `setsockopt`.
    void assign(asio::ip::tcp::socket accepted, asio::const_buffer received = {});
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    void assign(asio::ip::tcp::socket accepted, error_code& code);
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    void assign(asio::ip::tcp::socket accepted, asio::const_buffer received, error_code& code);

    /// @brief Shuts the connection down.
    ///
    /// A pending operation completes with `operation_aborted`.
    ///
    /// Bytes that the program has not received are lost, and their pages return at once. Loans stay valid. The
    /// descriptor closes when the last loan has returned.
    void close() noexcept;
    /// @brief Completes pending operations with `operation_aborted`, as their cancellation slots do.
    ///
    /// The connection continues, unless an async_connect() was pending. An async_connect() with several peers tries no
    /// further one.
    void cancel() noexcept;
    /// @brief Ends one direction of the connection, or both.
    ///
    /// With `shutdown_send` the peer sees the end of the stream. Bytes that have arrived can still be received.
    ///
    /// @param what Directions, as in `asio::socket_base::shutdown_type`.
    /// @throws system_error The system's errors.
    void shutdown(asio::socket_base::shutdown_type what);
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    void shutdown(asio::socket_base::shutdown_type what, error_code& code);

    /// @brief Returns the number of bytes that can be received without a wait.
    ///
    /// Returns 0 if the receiver is not open.
    /// @throws system_error The system's errors.
    [[nodiscard]] std::size_t available() const;
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    [[nodiscard]] std::size_t available(error_code& code) const;

    /// @brief Returns the connection's endpoint on this host.
    /// @throws system_error If the receiver is not connected.
    [[nodiscard]] asio::ip::tcp::endpoint local_endpoint() const;
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    [[nodiscard]] asio::ip::tcp::endpoint local_endpoint(error_code& code) const;
    /// @brief Returns the endpoint of the peer.
    /// @throws system_error If the receiver is not connected.
    [[nodiscard]] asio::ip::tcp::endpoint remote_endpoint() const;
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    [[nodiscard]] asio::ip::tcp::endpoint remote_endpoint(error_code& code) const;

    /// @brief Sets an option of the socket, as Asio does.
    ///
    /// Examples are `asio::ip::tcp::no_delay` and `asio::socket_base::keep_alive`.
    ///
    /// Do not set the receive buffer: the session sets it (`rx_session_options::receive_memory`).
    ///
    /// @throws system_error `asio::error::bad_descriptor` if the receiver is not open. The system's errors.
    template <class Option>
    void set_option(Option const& option)
    {
        error_code code;
        set_option(option, code);
        check("set option of", code);
    }
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    template <class Option>
    void set_option(Option const& option, error_code& code)
    {
        detail::socket_of(shared_state()).set_option(option, code);
    }
    /// @brief Gets an option of the socket, as Asio does.
    /// @throws system_error `asio::error::bad_descriptor` if the receiver is not open. The system's errors.
    template <class Option>
    void get_option(Option& option) const
    {
        error_code code;
        get_option(option, code);
        check("get option of", code);
    }
    /// @brief Sets `code` instead of throwing; otherwise as the overload above.
    template <class Option>
    void get_option(Option& option, error_code& code) const
    {
        code = asio::error::bad_descriptor;
        if (state_ != nullptr)
            detail::socket_of(*state_).get_option(option, code);
    }

    /// @brief Returns the descriptor; -1 if the receiver is not open.
    ///
    /// Use it for system calls that this class does not wrap.
    ///
    /// Do not read from it, close it or change `O_NONBLOCK`.
    [[nodiscard]] int native_handle() const noexcept;
    /// @brief Returns the counters of the present connection, otherwise of the last one.
    [[nodiscard]] gpurx::stats stats() const noexcept;
    /// @brief Returns the diagnostics of the last operation that failed (error.hpp).
    ///
    /// They are empty if no operation has failed since the connection was made. They do not cover writes, which are
    /// operations of Asio.
    [[nodiscard]] diagnostics why() const;

  protected:
    /// @brief Constructs the base of a receiver.
    receiver_base(asio::any_io_executor executor, rx_session& session);
    /// @brief Constructs the base of a receiver with a state.
    receiver_base(asio::any_io_executor executor, std::shared_ptr<detail::receiver_state> state) noexcept;
    /// @brief Moves the flow.
    receiver_base(receiver_base&& other) noexcept;
    /// @brief Closes the present flow and moves the other.
    receiver_base& operator=(receiver_base&& other) noexcept;
    /// @brief Closes the flow. A pending operation completes with `operation_aborted`.
    ~receiver_base();

    /// @brief Returns the executor, whatever its type.
    [[nodiscard]] asio::any_io_executor const& erased_executor() const noexcept { return executor_; }
    /// @brief Returns the state; for a moved-from receiver, a state without a session.
    [[nodiscard]] std::shared_ptr<detail::receiver_state> const& state();

  private:
    friend struct detail::receiver_access;

    [[nodiscard]] detail::receiver_state& shared_state() { return *state(); }
    // Throws if `code` is an error.
    void check(char const* operation, error_code code) const;

    asio::any_io_executor executor_;
    std::shared_ptr<detail::receiver_state> state_;  // null: moved from
};

}  // namespace gpurx
