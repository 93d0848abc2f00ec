// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Receivers of TCP flows whose bytes land in a session's memory.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <concepts>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <gpurx/detail/initiation.hpp>
#include <gpurx/detail/receiver_base.hpp>
#include <gpurx/error.hpp>
#include <gpurx/read.hpp>
#include <gpurx/rx_buffer.hpp>
#include <gpurx/session.hpp>

namespace gpurx {

namespace detail {

template <class T>
concept endpoint_sequence = static_cast<bool>(asio::is_endpoint_sequence<T>::value);

}  // namespace detail

/// @brief A receiver of one TCP flow, whose bytes land in a session's memory.
///
/// The rules below hold for all `async_` operations of this library.
///
/// @par Executor
/// The handler runs on its associated executor, by default the receiver's. It runs inside the initiating function only
/// if its associated immediate executor permits it, for an operation that can finish at once. Internal steps run
/// on the handler's executor too. If several threads run the context, give token and receiver the same strand.
///
/// @par Token
/// Any completion token. The default is the token of the receiver's executor (`as_default_on`), otherwise
/// gpurx::use_awaitable. With gpurx::use_awaitable a failed `co_await` throws gpurx::system_error with diagnostics
/// (use_awaitable.hpp).
///
/// @par Lifetime
/// An operation keeps the flow alive. The receiver may be moved or destroyed meanwhile. Its destruction completes the
/// operation with `operation_aborted`. Memory behind a span must stay valid until completion.
///
/// @par Allocation
/// An operation uses the handler's associated allocator. It releases the memory before the handler runs.
///
/// @par Per-operation cancellation
/// Cancel an operation through the handler's cancellation slot. Emit the signal on the receiver's strand. Cancellation
/// loses no byte that has arrived, and never turns a success into `operation_aborted`. The operator `a || b` on
/// awaitables discards the result of the slower operation, even if it was ready too. Prefer `parallel_group`, or a
/// timer that cancels.
///
/// @par Concurrency
/// A receiver serves one connect, receive or read at a time. A second one completes with errc::already_running and does
/// not affect the first.
///
/// @par Thread safety
/// Distinct receivers are safe, even of one session. One receiver is unsafe: use it on one strand.
///
/// @par Asio and Beast
/// A receiver is an AsyncReadStream and an AsyncWriteStream. Composed operations accept it:
/// `boost::asio::async_read_until`, `boost::asio::async_write`, `boost::beast::http::async_read`.
///
/// @par Moved-from receivers
/// A moved-from receiver keeps only its executor, and is not open. It may be queried, assigned to and destroyed. Its
/// operations complete with `bad_descriptor` or `not_connected`.
///
/// @tparam Executor Executor of the receiver.
template <class Executor = asio::any_io_executor>
class basic_receiver : public receiver_base {
  public:
    /// @brief Type of the executor.
    using executor_type = Executor;
    /// @brief The same I/O object with another executor.
    template <class Other>
    struct rebind_executor {
        /// @brief Type of the receiver.
        using other = basic_receiver<Other>;
    };

    /// @brief Constructs a receiver that is not open. Connect it, or assign a connection.
    ///
    /// @par Lifetime
    /// The session may be destroyed afterwards: the receiver keeps the state that it needs.
    basic_receiver(executor_type const& executor, rx_session& session)
        : receiver_base{executor, session}, executor_{executor}
    {}
    /// @brief Adopts a connection, as assign() does.
    /// @throws system_error The errors of assign().
    basic_receiver(executor_type const& executor, rx_session& session, asio::ip::tcp::socket accepted,
                   asio::const_buffer received = {})
        : basic_receiver{executor, session}
    {
        assign(std::move(accepted), received);
    }
    /// @brief Constructs a receiver with an execution context's executor; otherwise as above.
    /// @tparam ExecutionContext A type that converts to `asio::execution_context&`.
    template <class ExecutionContext, class... Connection>
    requires std::convertible_to<ExecutionContext&, asio::execution_context&> basic_receiver(ExecutionContext& context,
                                                                                             rx_session& session,
                                                                                             Connection&&... connection)
        : basic_receiver{executor_type{context.get_executor()}, session, std::forward<Connection>(connection)...}
    {}

    /// @brief Moves the flow.
    basic_receiver(basic_receiver&& other) noexcept : receiver_base{std::move(other)}, executor_{other.get_executor()}
    {}
    /// @brief Closes the present flow and moves that of `other`.
    ///
    /// The present flow closes as in the destructor.
    basic_receiver& operator=(basic_receiver&& other) noexcept
    {
        receiver_base::operator=(std::move(other));
        executor_ = other.executor_;
        return *this;
    }
    /// @brief Moves the flow of a receiver with another executor type (`as_default_on`).
    /// @tparam Other A type that converts to `Executor`.
    template <class Other>
    requires std::convertible_to<Other, Executor> basic_receiver(basic_receiver<Other>&& other)
    noexcept : receiver_base{std::move(other)}, executor_{other.get_executor()} {}
    /// @brief Closes the flow. Loans stay valid.
    ///
    /// A pending operation completes with `operation_aborted`.
    ~basic_receiver() = default;

    /// @brief Returns the executor.
    [[nodiscard]] executor_type get_executor() const noexcept { return executor_; }
    /// @brief Type of the lowest layer.
    ///
    /// Streams on top of a receiver use it, such as `boost::asio::buffered_read_stream`.
    using lowest_layer_type = basic_receiver;
    /// @brief Returns the receiver itself.
    [[nodiscard]] lowest_layer_type& lowest_layer() noexcept { return *this; }
    /// @brief Returns the receiver itself.
    [[nodiscard]] lowest_layer_type const& lowest_layer() const noexcept { return *this; }

    /// @brief Connects to `peer`.
    ///
    /// Except with transport `copy`, a rule steers the flow to the session's queues. The session installs the rule
    /// before the first packet leaves. The rule matches the 5-tuple, or the local port if the driver does not support
    /// 5-tuples.
    ///
    /// @param peer Endpoint to connect to.
    /// @param token Completion token with the signature `void(error_code)`.
    ///
    /// @par Per-operation cancellation
    /// Terminal and partial. Cancellation closes the receiver.
    ///
    /// @par Errors
    /// - errc::too_many_flows and errc::already_running.
    /// - `asio::error::already_connected`.
    /// - The driver's error if it refuses the rule.
    /// - The errors of `connect`.
    ///
    /// @par Cost
    /// Except with transport `copy`, some ms of ioctl calls in a thread of the session, and longer while another
    /// session opens on the interface. The calling thread does not wait.
    template <asio::completion_token_for<void(error_code)> Token = detail::default_token<Executor>>
    auto async_connect(asio::ip::tcp::endpoint peer, Token&& token = Token())
    {
        return asio::async_initiate<Token, void(error_code)>(
            detail::initiation{erased_executor(),
                               [](auto of, auto endpoint, auto site, auto&& handler) {
                                   detail::start_connect(std::move(of), endpoint, std::move(site),
                                                         std::forward<decltype(handler)>(handler));
                               }},
            token, state(), peer);
    }

    /// @brief Connects to the first of `peers` that answers.
    ///
    /// The operation works as `boost::asio::async_connect`.
    ///
    /// It tries one peer after the other, each as above.
    ///
    /// @param peers Results of a resolver, or any range of endpoints. The operation copies them.
    /// @param token Completion token with the signature `void(error_code, asio::ip::tcp::endpoint)`. The endpoint is
    ///   that of the peer that answered.
    ///
    /// @par Per-operation cancellation
    /// Terminal and partial. Cancellation closes the receiver, and the operation tries no further peer.
    ///
    /// @par Errors
    /// - The errors of the last peer tried.
    /// - `asio::error::not_found`: `peers` is empty.
    /// - `asio::error::already_connected`, errc::already_running and errc::too_many_flows: the operation tries no
    ///   further peer.
    template <
        detail::endpoint_sequence EndpointSequence,
        asio::completion_token_for<void(error_code, asio::ip::tcp::endpoint)> Token = detail::default_token<Executor>>
    auto async_connect(EndpointSequence const& peers, Token&& token = Token())
    {
        return asio::async_initiate<Token, void(error_code, asio::ip::tcp::endpoint)>(
            detail::initiation{erased_executor(),
                               [](auto of, auto endpoints, auto site, auto&& handler) {
                                   detail::start_connect_each(std::move(of), std::move(endpoints), std::move(site),
                                                              std::forward<decltype(handler)>(handler));
                               }},
            token, state(), std::vector<asio::ip::tcp::endpoint>(std::begin(peers), std::end(peers)));
    }

    /// @brief Receives the bytes that have arrived, in place, as a loan.
    ///
    /// The operation waits for at least one byte. The rx_buffer has the bytes where the NIC or the system wrote them.
    /// @param token Completion token with the signature `void(error_code, rx_buffer)`. On an error the buffer is empty.
    ///
    /// @par Per-operation cancellation
    /// Terminal, partial and total. An operation that completes with `operation_aborted` has consumed no byte and
    /// borrowed no page.
    ///
    /// @par Errors
    /// - `asio::error::eof`: the stream has ended. All later calls complete with it too.
    /// - `asio::error::not_connected`.
    /// - errc::already_running, errc::memory_locked_up, errc::foreign_memory, errc::mixed_fragments.
    /// - The errors of `recvmsg`.
    /// - With transport `copy` onto a GPU: the CUDA driver's errors.
    ///
    /// @par Back-pressure
    /// At `rx_session_options::loan_limit` the operation waits until a loan of this flow returns.
    ///
    /// @par Cost
    /// One `recvmsg` if bytes have arrived. Otherwise one wait of the reactor and one `recvmsg`. The first receive that
    /// waits, and every sixteenth, makes one more `recvmsg`, which finds nothing. The library allocates nothing after
    /// the first few calls.
    template <asio::completion_token_for<void(error_code, rx_buffer)> Token = detail::default_token<Executor>>
    auto async_receive(Token&& token = Token())
    {
        return async_receive(std::numeric_limits<std::size_t>::max(), std::forward<Token>(token));
    }

    /// @brief Receives at most `at_most` bytes; otherwise as async_receive(token).
    ///
    /// Use it for protocols with lengths, if the next byte belongs to another message. Bytes beyond `at_most` stay in
    /// the socket. The operation splits a batch that an earlier operation left over.
    ///
    /// Several loans of one batch hold all of its pages until the last loan returns. Until then the batch counts as one
    /// loan. After the first such receive, a read takes at most 64 KiB beyond its own bytes from the socket.
    ///
    /// @param at_most Most bytes on loan. With 0 the operation completes at once, with an empty buffer and no error.
    /// @param token Completion token with the signature `void(error_code, rx_buffer)`.
    template <asio::completion_token_for<void(error_code, rx_buffer)> Token = detail::default_token<Executor>>
    auto async_receive(std::size_t at_most, Token&& token = Token())
    {
        return initiate_receive(1, at_most, std::forward<Token>(token));
    }

    /// @brief Receives exactly `bytes` bytes, in place, as one loan of one or several batches.
    ///
    /// Use it for the body of a message after its header was read. Use async_receive() and async_read() for longer
    /// bodies. After an error the program can still receive and read the bytes that have arrived.
    ///
    /// @param bytes Bytes to receive. With 0 the operation completes at once, with an empty buffer and no error.
    /// @param token Completion token with the signature `void(error_code, rx_buffer)`.
    ///
    /// @par Per-operation cancellation
    /// Terminal, partial and total. An operation that completes with `operation_aborted` has consumed no byte.
    ///
    /// @par Errors
    /// - The errors of async_receive().
    /// - `asio::error::eof`: the stream ends earlier.
    /// - errc::beyond_loan_limit: `bytes` exceeds `rx_session_options::loan_limit`, or the size of the memory. Except
    ///   with `copy`, the whole pages of the bytes count.
    ///
    /// @par Back-pressure
    /// If other loans fill the limit, the operation waits until a loan of this flow returns.
    ///
    /// @par Cost
    /// As async_receive(), per batch.
    template <asio::completion_token_for<void(error_code, rx_buffer)> Token = detail::default_token<Executor>>
    auto async_receive_exactly(std::size_t bytes, Token&& token = Token())
    {
        return initiate_receive(bytes, bytes, std::forward<Token>(token));
    }

    /// @brief Reads some bytes to the host, at most as many as `to` holds.
    ///
    /// The operation reads at least one byte. It consumes no bytes that it does not read.
    ///
    /// Use it for headers of a protocol. Use async_read() and async_receive() for payload.
    ///
    /// @param to A MutableBufferSequence of Asio. If its size is 0, the operation completes at once, with 0 and no
    ///   error.
    /// @param token Completion token with the signature `void(error_code, std::size_t bytes)`.
    ///
    /// @par Per-operation cancellation
    /// Terminal, partial and total. An operation that completes with `operation_aborted` has consumed no byte.
    ///
    /// @par Errors
    /// As async_read() (read.hpp).
    ///
    /// @par Cost
    /// As async_read() (read.hpp).
    template <detail::mutable_buffers MutableBufferSequence,
              asio::completion_token_for<void(error_code, std::size_t)> Token = detail::default_token<Executor>>
    auto async_read_some(MutableBufferSequence const& to, Token&& token = Token())
    {
        return detail::initiate_read(state(), erased_executor(), to, detail::read_until::some,
                                     std::forward<Token>(token));
    }
    /// @brief Reads into an object or a range: `async_read_some(host_span{header})`; otherwise as above.
    template <asio::completion_token_for<void(error_code, std::size_t)> Token = detail::default_token<Executor>>
    auto async_read_some(host_span to, Token&& token = Token())
    {
        return detail::initiate_read(state(), erased_executor(), destination{to}, detail::read_until::some,
                                     std::forward<Token>(token));
    }
    /// @brief Deleted. Wrap an object or a range: `host_span{to}`.
    template <detail::bytes_to_wrap Object, class... Rest>
    void async_read_some(Object& to, Rest&&... rest) = delete;  // wrap it in host_span{to}

    /// @brief Sends some of `data` to the peer, such as requests or acknowledgements.
    ///
    /// The operation may run at the same time as a receive or a read. One write runs at a time. Otherwise the operation
    /// works as `boost::asio::ip::tcp::socket::async_write_some`.
    ///
    /// @param data A ConstBufferSequence of Asio.
    /// @param token Completion token with the signature `void(error_code, std::size_t bytes)`.
    ///
    /// @par Per-operation cancellation
    /// As `boost::asio::ip::tcp::socket::async_write_some`.
    ///
    /// @par Lifetime
    /// `data` must stay valid until completion.
    ///
    /// @par Errors
    /// - The errors of Asio's operation.
    /// - `asio::error::operation_aborted`: the receiver was closed or destroyed.
    /// - `asio::error::bad_descriptor`: the receiver is not open.
    ///
    /// @par Cost
    /// One `send`, and a wait of the reactor if the socket's buffer is full.
    template <class ConstBufferSequence,
              asio::completion_token_for<void(error_code, std::size_t)> Token = detail::default_token<Executor>>
    auto async_write_some(ConstBufferSequence const& data, Token&& token = Token())
    {
        return asio::async_initiate<Token, void(error_code, std::size_t)>(
            detail::initiation{erased_executor(),
                               [own = erased_executor()](auto of, auto const& bytes, auto site, auto&& handler) {
                                   detail::start_write(*of.state, detail::send_buffers{bytes}, site, own,
                                                       std::forward<decltype(handler)>(handler));
                               }},
            token, detail::transfer_of<detail::transfer::write>{state()}, data);
    }

  private:
    template <class>
    friend class basic_acceptor;

    basic_receiver(executor_type const& executor, std::shared_ptr<detail::receiver_state> state)
        : receiver_base{executor, std::move(state)}, executor_{executor}
    {}

    template <class Token>
    auto initiate_receive(std::size_t at_least, std::size_t at_most, Token&& token)
    {
        return asio::async_initiate<Token, void(error_code, rx_buffer)>(
            detail::initiation{erased_executor(),
                               [](auto of, std::size_t least, std::size_t most, auto site, auto&& handler) {
                                   detail::start_receive(std::move(of.state), least, most, std::move(site),
                                                         std::forward<decltype(handler)>(handler));
                               }},
            token, detail::transfer_of<detail::transfer::receive>{state()}, at_least, at_most);
    }

    executor_type executor_;
};

/// @brief A receiver with the executor `asio::any_io_executor`.
using receiver = basic_receiver<>;

}  // namespace gpurx
