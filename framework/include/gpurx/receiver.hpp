// SPDX-License-Identifier: Apache-2.0
//
// receiver: one TCP flow whose bytes land in a session's memory.
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

// Rules that hold for every async_ operation of this library:
//   Executor: the handler runs on its associated executor, by default the receiver's; never inside the initiating
//     function. An operation that can finish at once goes through the handler's associated immediate executor. Internal
//     steps run on the handler's executor too, so give token and receiver the same strand if there is more than one
//     thread.
//   Token: any. Without one it is what the receiver's executor names (as_default_on), else gpurx::use_awaitable, whose
//     exceptions are of type gpurx::system_error and say why (use_awaitable.hpp).
//   Lifetimes: an operation keeps the flow alive; the receiver may be moved or destroyed meanwhile (destroying it
//     completes the operation with operation_aborted). Memory that a span names must stay until completion.
//   Allocation: the handler's associated allocator, released before the handler runs.
//   Cancellation: through the handler's cancellation slot. What arrived is never lost, and a success is never turned
//     into operation_aborted. Emit on the receiver's strand. (`a || b` on awaitables discards the result of a loser
//     that was ready too: prefer parallel_group, or a timer that cancels.)
//   One at a time: a second async_connect, receive or read completes with errc::already_running and disturbs nothing.
//
// Thread safety: distinct receivers are safe, of one session too; one receiver belongs to one strand.
//
// A receiver is an AsyncReadStream and an AsyncWriteStream, so Asio's and Beast's composed operations take one:
// boost::asio::async_read_until, boost::asio::async_write, boost::beast::http::async_read.
//
// detail/receiver_base.hpp has the members that depend on no Executor: assign(), close(), cancel(), shutdown(),
// available(), the endpoints, options of the socket, stats() and why().
//
// One that was moved from keeps its executor and nothing else: it is not open, may be asked, assigned to and destroyed,
// and its operations complete with bad_descriptor or not_connected.
template <class Executor = asio::any_io_executor>
class basic_receiver : public receiver_base {
  public:
    using executor_type = Executor;
    // The same I/O object with another executor.
    template <class Other>
    struct rebind_executor {
        using other = basic_receiver<Other>;
    };

    // A flow to be connected. The session may be destroyed afterwards: the receiver keeps what it needs.
    basic_receiver(executor_type const& executor, rx_session& session)
        : receiver_base{executor, session}, executor_{executor}
    {}
    // Adopts a connection, as assign() does. Throws system_error.
    basic_receiver(executor_type const& executor, rx_session& session, asio::ip::tcp::socket accepted,
                   asio::const_buffer received = {})
        : basic_receiver{executor, session}
    {
        assign(std::move(accepted), received);
    }
    // The same with the executor of an execution context.
    template <class ExecutionContext, class... Connection>
    requires std::convertible_to<ExecutionContext&, asio::execution_context&> basic_receiver(ExecutionContext& context,
                                                                                             rx_session& session,
                                                                                             Connection&&... connection)
        : basic_receiver{executor_type{context.get_executor()}, session, std::forward<Connection>(connection)...}
    {}

    basic_receiver(basic_receiver&& other) noexcept : receiver_base{std::move(other)}, executor_{other.get_executor()}
    {}
    basic_receiver& operator=(basic_receiver&& other) noexcept
    {
        receiver_base::operator=(std::move(other));
        executor_ = other.executor_;
        return *this;
    }
    // From one with another type of executor (as_default_on).
    template <class Other>
    requires std::convertible_to<Other, Executor> basic_receiver(basic_receiver<Other>&& other)
    noexcept : receiver_base{std::move(other)}, executor_{other.get_executor()} {}
    // Closes the flow: a pending operation completes with operation_aborted. Loans stay valid.
    ~basic_receiver() = default;

    [[nodiscard]] executor_type get_executor() const noexcept { return executor_; }
    // For streams on top of it, such as boost::asio::buffered_read_stream.
    using lowest_layer_type = basic_receiver;
    [[nodiscard]] lowest_layer_type& lowest_layer() noexcept { return *this; }
    [[nodiscard]] lowest_layer_type const& lowest_layer() const noexcept { return *this; }

    // Connects to `peer`. With devmem a rule that brings the flow to the session's queues is installed before the first
    // packet leaves (by 5-tuple; by local port where the driver cannot).
    // Signature: void(error_code). Per-operation cancellation: terminal and partial; the receiver is closed then.
    // Errors: errc::too_many_flows, already connected (asio::error::already_connected), what the driver answers to the
    //   rule, what connect reports.
    // Cost: with devmem some ms of ioctl calls in a thread of the session, for longer while another session is being
    //   opened on the interface; the calling thread waits for nothing.
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

    // Connects to the first of `peers` that answers, as boost::asio::async_connect does: one after the other, each as
    // above. `peers` is copied: what a resolver found, or any range of endpoints.
    // Signature: void(error_code, asio::ip::tcp::endpoint): the one that answered.
    // Per-operation cancellation: terminal and partial; the receiver is closed then, and no further one is tried.
    // Errors: those of the last one tried; asio::error::not_found if there is none. Others are not tried after
    //   asio::error::already_connected, errc::already_running and errc::too_many_flows.
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

    // Receives what is there, in place: completes with at least one byte on loan, or an error and an empty buffer.
    // Signature: void(error_code, rx_buffer).
    // Per-operation cancellation: terminal, partial, total. operation_aborted: no byte was consumed, no page borrowed.
    // Errors: asio::error::eof at the end of the stream (and ever after); asio::error::not_connected;
    //   errc::already_running, memory_locked_up, foreign_memory, mixed_fragments; what recvmsg reports; with transport
    //   copy onto a GPU what the CUDA driver reports.
    // Back-pressure: at rx_session_options::loan_limit it waits until a loan of this flow returns.
    // Cost: one recvmsg if bytes are there; one wait of the reactor and one recvmsg if not, and one more that finds
    //   nothing at the first of such receives and at every sixteenth. No allocation by the library after the first few
    //   calls.
    template <asio::completion_token_for<void(error_code, rx_buffer)> Token = detail::default_token<Executor>>
    auto async_receive(Token&& token = Token())
    {
        return async_receive(std::numeric_limits<std::size_t>::max(), std::forward<Token>(token));
    }

    // The same, but never lends a byte beyond `at_most`: for protocols with lengths, where the next byte is another
    // message's. What the socket has beyond stays there; what is carried from an earlier batch is split. `at_most` 0:
    // completes at once, with an empty buffer and no error.
    // Several loans of one batch hold all of its pages until the last of them goes back; the batch counts as one loan
    // meanwhile. From the first such receive on, a read takes no more than 64 KiB beyond its own from the socket.
    template <asio::completion_token_for<void(error_code, rx_buffer)> Token = detail::default_token<Executor>>
    auto async_receive(std::size_t at_most, Token&& token = Token())
    {
        return initiate_receive(1, at_most, std::forward<Token>(token));
    }

    // Receives exactly `bytes`, in place: one loan of all of them, of several batches if need be. For the body of a
    // message whose header was read; longer bodies are for async_receive and async_read.
    // Signature: void(error_code, rx_buffer). 0 bytes: completes at once, with an empty buffer and no error.
    // Per-operation cancellation: terminal, partial, total. operation_aborted: no byte was consumed.
    // Errors: those of async_receive. asio::error::eof: the stream ends before. errc::beyond_loan_limit: `bytes`, or
    //   with devmem the whole pages that they arrive in, are more than rx_session_options::loan_limit, or than the
    //   memory. After each of them what has arrived can still be received and read.
    // Back-pressure: where other loans fill the limit it waits until one of this flow returns.
    // Cost: as async_receive, per batch.
    template <asio::completion_token_for<void(error_code, rx_buffer)> Token = detail::default_token<Executor>>
    auto async_receive_exactly(std::size_t bytes, Token&& token = Token())
    {
        return initiate_receive(bytes, bytes, std::forward<Token>(token));
    }

    // Reads some bytes to the host, at least one and at most as many as `to` holds, and consumes no others. What a
    // protocol with headers needs; payload is for async_read and async_receive.
    // Signature: void(error_code, std::size_t bytes). No room in `to`: completes at once, with 0 and no error.
    // Per-operation cancellation: terminal, partial, total. operation_aborted: no byte was consumed.
    // Errors and cost: those of async_read (read.hpp).
    template <detail::mutable_buffers MutableBufferSequence,
              asio::completion_token_for<void(error_code, std::size_t)> Token = detail::default_token<Executor>>
    auto async_read_some(MutableBufferSequence const& to, Token&& token = Token())
    {
        return detail::initiate_read(state(), erased_executor(), to, detail::read_until::some,
                                     std::forward<Token>(token));
    }
    // The same into an object or a range: async_read_some(host_span{header}).
    template <asio::completion_token_for<void(error_code, std::size_t)> Token = detail::default_token<Executor>>
    auto async_read_some(host_span to, Token&& token = Token())
    {
        return detail::initiate_read(state(), erased_executor(), destination{to}, detail::read_until::some,
                                     std::forward<Token>(token));
    }
    template <detail::bytes_to_wrap Object, class... Rest>
    void async_read_some(Object& to, Rest&&... rest) = delete;  // wrap it in host_span{to}

    // Sends some of `data` to the peer: what a protocol with requests or acknowledgements needs. May run beside a
    // receive or a read; one at a time. Signature: void(error_code, std::size_t bytes). `data` must stay until
    // completion. Everything else as boost::asio::ip::tcp::socket::async_write_some has it; a receiver that is closed
    // or destroyed completes it with operation_aborted, one that is not open with boost::asio::error::bad_descriptor.
    // Cost: one send; a wait of the reactor if the socket's buffer is full.
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

using receiver = basic_receiver<>;

}  // namespace gpurx
