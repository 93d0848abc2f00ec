// SPDX-License-Identifier: Apache-2.0
//
// receiver_base: what a receiver has whatever the type of its executor. Programs include receiver.hpp, and name
// gpurx::receiver.
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

// The buffers of one send: as many as Asio hands to one system call. The next send takes those beyond.
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

// `own`: runs the handler if it has no executor.
void start_write(receiver_state& state, send_buffers const& data, completion_site const& site,
                 asio::any_io_executor const& own, read_handler handler);

[[nodiscard]] asio::ip::tcp::socket& socket_of(receiver_state& state) noexcept;

// Makes the exception of a failed co_await (use_awaitable.hpp).
[[nodiscard]] std::exception_ptr failure_of(std::shared_ptr<receiver_state> const& state, error_code code) noexcept;
// A receiver and what moves its bytes: why() may be that of another operation, refused or begun meanwhile.
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

// A base only: nothing is made, moved or destroyed as one.
class receiver_base {
  public:
    [[nodiscard]] bool is_open() const noexcept;

    // Takes over a connection accepted from an acceptor that was given to rx_session::steer(). Bytes that came by
    // another way are delivered all the same, and counted as host_bytes. Takes the descriptor out of `accepted`, which
    // is closed if this fails, and sets FD_CLOEXEC on it, as Asio does not. The receiver must not be open.
    // `received`: what was read from `accepted` before. It is copied, and delivered first, by reads as well as by
    // async_receive; counted as host_bytes.
    // Errors: asio::error::already_open; errc::already_running; errc::too_many_flows; asio::error::bad_descriptor of a
    //   receiver that was moved from; what release() or setsockopt report.
    void assign(asio::ip::tcp::socket accepted, asio::const_buffer received = {});  // throws system_error
    void assign(asio::ip::tcp::socket accepted, error_code& code);
    void assign(asio::ip::tcp::socket accepted, asio::const_buffer received, error_code& code);

    // Shuts the connection down; a pending operation completes with operation_aborted, and what was not received is
    // lost: its pages go back at once. Loans stay valid, and the descriptor is closed when the last of them is gone.
    void close() noexcept;
    // Pending operations complete with operation_aborted, as if each had been cancelled by itself; the connection goes
    // on, unless it was not there yet (async_connect). Of several peers no further one is tried.
    void cancel() noexcept;
    // Ends one direction, or both: shutdown_send tells the peer that nothing more is sent. What has arrived
    // can still be received.
    void shutdown(asio::socket_base::shutdown_type what);  // throws system_error
    void shutdown(asio::socket_base::shutdown_type what, error_code& code);

    // Bytes that can be received without waiting. 0 of a receiver that is not open.
    [[nodiscard]] std::size_t available() const;  // throws system_error
    [[nodiscard]] std::size_t available(error_code& code) const;

    [[nodiscard]] asio::ip::tcp::endpoint local_endpoint() const;  // throws system_error if not connected
    [[nodiscard]] asio::ip::tcp::endpoint local_endpoint(error_code& code) const;
    [[nodiscard]] asio::ip::tcp::endpoint remote_endpoint() const;  // throws system_error if not connected
    [[nodiscard]] asio::ip::tcp::endpoint remote_endpoint(error_code& code) const;

    // Options of the socket, as Asio has them: asio::ip::tcp::no_delay, asio::socket_base::keep_alive. The receive
    // buffer is the session's (rx_session_options::receive_memory): leave it. Not open: asio::error::bad_descriptor.
    template <class Option>
    void set_option(Option const& option)  // throws system_error
    {
        error_code code;
        set_option(option, code);
        check("set option of", code);
    }
    template <class Option>
    void set_option(Option const& option, error_code& code)
    {
        detail::socket_of(shared_state()).set_option(option, code);
    }
    template <class Option>
    void get_option(Option& option) const  // throws system_error
    {
        error_code code;
        get_option(option, code);
        check("get option of", code);
    }
    template <class Option>
    void get_option(Option& option, error_code& code) const
    {
        code = asio::error::bad_descriptor;
        if (state_ != nullptr)
            detail::socket_of(*state_).get_option(option, code);
    }

    // For what there is no function for. Do not read from it, close it or change O_NONBLOCK. -1: not open.
    [[nodiscard]] int native_handle() const noexcept;
    // Of the connection, or of the last one if there is none now.
    [[nodiscard]] gpurx::stats stats() const noexcept;
    // Says what the last operation that failed was doing, and what to change: the words for an error_code (error.hpp).
    // Empty if none has failed since the connection was made. A write is Asio's own, and noted by nobody.
    [[nodiscard]] diagnostics why() const;

  protected:
    receiver_base(asio::any_io_executor executor, rx_session& session);
    receiver_base(asio::any_io_executor executor, std::shared_ptr<detail::receiver_state> state) noexcept;
    receiver_base(receiver_base&& other) noexcept;
    receiver_base& operator=(receiver_base&& other) noexcept;
    ~receiver_base();

    [[nodiscard]] asio::any_io_executor const& erased_executor() const noexcept { return executor_; }
    // Of a receiver that was moved from: a state without a session.
    [[nodiscard]] std::shared_ptr<detail::receiver_state> const& state();

  private:
    friend struct detail::receiver_access;

    [[nodiscard]] detail::receiver_state& shared_state() { return *state(); }
    // Throws an error.
    void check(char const* operation, error_code code) const;

    asio::any_io_executor executor_;
    std::shared_ptr<detail::receiver_state> state_;  // null: moved from
};

}  // namespace gpurx
