// SPDX-License-Identifier: Apache-2.0
//
// receiver: one TCP flow whose bytes land in a session's memory.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <concepts>
#include <cstddef>
#include <memory>
#include <utility>

#include <gpurx/error.hpp>
#include <gpurx/initiation.hpp>
#include <gpurx/rx_buffer.hpp>
#include <gpurx/session.hpp>
#include <gpurx/stats.hpp>
#include <gpurx/stream.hpp>

namespace gpurx {

class receiver;

namespace detail {

class receiver_state;

using connect_handler = asio::any_completion_handler<void(error_code)>;
using receive_handler = asio::any_completion_handler<void(error_code, rx_buffer)>;
using read_handler = asio::any_completion_handler<void(error_code, std::size_t)>;

// Compiled once, in receiver.cpp and read.cpp; the templates below only erase the handler's type.
void start_connect(std::shared_ptr<receiver_state> state, asio::ip::tcp::endpoint peer, completion_site site,
                   connect_handler handler);
void start_receive(std::shared_ptr<receiver_state> state, completion_site site, receive_handler handler);
void start_read_host(std::shared_ptr<receiver_state> state, host_span destination, completion_site site,
                     read_handler handler);
void start_read_device(std::shared_ptr<receiver_state> state, device_span destination, cuda_stream_ref stream,
                       completion_site site, read_handler handler);

[[nodiscard]] asio::ip::tcp::socket& socket_of(receiver_state& state) noexcept;

// What the free functions of this library see of a receiver.
struct receiver_access {
    [[nodiscard]] static std::shared_ptr<receiver_state> const& state(receiver const& from) noexcept;
};

}  // namespace detail

// Rules that hold for every async_ operation of this library:
//   Executor: the handler runs on its associated executor, by default the receiver's; never inside the initiating
//     function. An operation that can finish at once goes through the handler's associated immediate executor. Internal
//     steps run on the handler's executor too, so give token and receiver the same strand if there is more than one
//     thread.
//   Lifetimes: an operation keeps the flow alive; the receiver may be moved or destroyed meanwhile (destroying it
//     completes the operation with operation_aborted). Memory that a span names must stay until completion.
//   Allocation: the handler's associated allocator, released before the handler runs.
//   Cancellation: through the handler's cancellation slot. What arrived is never lost, and a success is never turned
//   into
//     operation_aborted. Emit on the receiver's strand. (`a || b` on awaitables discards the result of a loser that was
//     ready too: prefer parallel_group, or a timer that cancels.)
//   One at a time: a second async_receive or async_read completes with errc::already_running and disturbs nothing.
//
// Thread safety: distinct receivers are safe, of one session too; one receiver belongs to one strand.
class receiver {
  public:
    using executor_type = asio::any_io_executor;

    // A flow to be connected. The session may be destroyed afterwards: the receiver keeps what it needs.
    receiver(executor_type executor, rx_session& session);

    // Adopts a connection accepted from an acceptor that was given to rx_session::steer(). Bytes that came by another
    // way are delivered all the same, and counted as host_bytes. Takes the descriptor out of `accepted`.
    // Throws system_error: errc::too_many_flows; what release() or setsockopt report. `accepted` is closed then.
    receiver(executor_type executor, rx_session& session, asio::ip::tcp::socket accepted);

    template <class ExecutionContext>
    requires std::convertible_to<ExecutionContext&, asio::execution_context&> receiver(ExecutionContext& context,
                                                                                       rx_session& session)
        : receiver(context.get_executor(), session)
    {}
    template <class ExecutionContext>
    requires std::convertible_to<ExecutionContext&, asio::execution_context&> receiver(ExecutionContext& context,
                                                                                       rx_session& session,
                                                                                       asio::ip::tcp::socket accepted)
        : receiver(context.get_executor(), session, std::move(accepted))
    {}

    receiver(receiver&&) noexcept;
    receiver& operator=(receiver&&) noexcept;
    // Closes the flow: a pending operation completes with operation_aborted. Loans stay valid.
    ~receiver();

    [[nodiscard]] executor_type get_executor() const noexcept;
    [[nodiscard]] bool is_open() const noexcept;
    // Shuts the connection down; a pending operation completes with operation_aborted, and what was not received is
    // lost: its pages go back at once. Loans stay valid, and the descriptor is closed when the last of them is gone.
    void close() noexcept;

    [[nodiscard]] asio::ip::tcp::endpoint local_endpoint() const;   // throws system_error if not connected
    [[nodiscard]] asio::ip::tcp::endpoint remote_endpoint() const;  // throws system_error if not connected
    // For socket options (keep-alive, TCP_NODELAY). Do not read from it, close it or change O_NONBLOCK. -1: not open.
    [[nodiscard]] int native_handle() const noexcept;
    [[nodiscard]] gpurx::stats stats() const noexcept;

    // Connects to `peer`. With devmem a rule that brings the flow to the session's queues is installed before the first
    // packet leaves (by 5-tuple; by local port where the driver cannot).
    // Signature: void(error_code). Per-operation cancellation: terminal and partial; the receiver is closed then.
    // Errors: errc::too_many_flows, already connected (asio::error::already_connected), what the driver answers to the
    //   rule, what connect reports.
    // Cost: with devmem some ms of ioctl calls in a thread of the session, for longer while another session is being
    // opened
    //   on the interface; the calling thread waits for nothing.
    template <asio::completion_token_for<void(error_code)> Token = asio::use_awaitable_t<>>
    auto async_connect(asio::ip::tcp::endpoint peer, Token&& token = Token())
    {
        return asio::async_initiate<Token, void(error_code)>(
            detail::initiation{get_executor(),
                               [](auto state, auto endpoint, auto site, auto&& handler) {
                                   detail::start_connect(std::move(state), endpoint, std::move(site),
                                                         std::forward<decltype(handler)>(handler));
                               }},
            token, state_, peer);
    }

    // Receives what is there, in place: completes with at least one byte on loan, or an error and an empty buffer.
    // Signature: void(error_code, rx_buffer).
    // Per-operation cancellation: terminal, partial, total. operation_aborted: no byte was consumed, no page borrowed.
    // Errors: asio::error::eof at the end of the stream (and ever after); asio::error::not_connected;
    //   errc::already_running, memory_locked_up, foreign_memory, mixed_fragments; what recvmsg reports; with transport
    //   copy onto a GPU what the CUDA driver reports.
    // Back-pressure: at rx_session_options::loan_limit it waits until a loan of this flow returns.
    // Cost: one recvmsg if bytes are there; one wait of the reactor and one more recvmsg if not. No allocation by the
    //   library after the first few calls.
    template <asio::completion_token_for<void(error_code, rx_buffer)> Token = asio::use_awaitable_t<>>
    auto async_receive(Token&& token = Token())
    {
        return asio::async_initiate<Token, void(error_code, rx_buffer)>(
            detail::initiation{get_executor(),
                               [](auto state, auto site, auto&& handler) {
                                   detail::start_receive(std::move(state), std::move(site),
                                                         std::forward<decltype(handler)>(handler));
                               }},
            token, state_);
    }

    // Sends some of `data` to the peer: what a protocol with requests or acknowledgements needs. With it a receiver is
    // an AsyncWriteStream, for boost::asio::async_write. May run beside a receive or a read; one at a time. Signature:
    // void(error_code, std::size_t bytes). `data` must stay until completion. Everything else as
    // boost::asio::ip::tcp::socket::async_write_some has it; a receiver that is closed or destroyed completes it with
    // operation_aborted, one that is not open with boost::asio::error::bad_descriptor.
    // Cost: one send; a wait of the reactor if the socket's buffer is full.
    template <class ConstBufferSequence,
              asio::completion_token_for<void(error_code, std::size_t)> Token = asio::use_awaitable_t<>>
    auto async_write_some(ConstBufferSequence const& data, Token&& token = Token())
    {
        return detail::socket_of(*state_).async_write_some(data, std::forward<Token>(token));
    }

  private:
    friend struct detail::receiver_access;

    std::shared_ptr<detail::receiver_state> state_;
};

inline std::shared_ptr<detail::receiver_state> const& detail::receiver_access::state(receiver const& from) noexcept
{
    return from.state_;
}

// Reads exactly destination.size() bytes of the stream, contiguous, and gives their pages back. async_read and
// async_receive may follow each other in any order: nothing is lost between them.
//
// Signature: void(error_code, std::size_t bytes). On success bytes is destination.size(). On an error it says how many
//   were placed: these are consumed, all others are still in the stream. A size of 0 completes with success.
// Per-operation cancellation: terminal, partial; total only while no byte has been placed.
// Errors: asio::error::eof if the stream ends before; else as async_receive.
// Cost: per batch of the stream one recvmsg, one copy of the bytes and one setsockopt. Bytes in a GPU's memory are
// fetched
//   by the thread that runs the operation, which waits for a kernel and for their way across PCIe: for headers.
template <asio::completion_token_for<void(error_code, std::size_t)> Token = asio::use_awaitable_t<>>
auto async_read(receiver& from, host_span destination, Token&& token = Token())
{
    return asio::async_initiate<Token, void(error_code, std::size_t)>(
        detail::initiation{from.get_executor(),
                           [](auto state, host_span to, auto site, auto&& handler) {
                               detail::start_read_host(std::move(state), to, std::move(site),
                                                       std::forward<decltype(handler)>(handler));
                           }},
        token, detail::receiver_access::state(from), destination);
}

// The same into device memory. On a GPU, completion means "enqueued on `stream`, in order": work enqueued on that
// stream later sees the bytes; other streams must wait for it. Without a stream it is CUDA's default stream
// (docs/gpu.md). Pages go back when the stream has passed. In host memory the bytes are there on completion. Any
// session may read into any GPU's memory; fragments on that GPU, and in pinned host memory, are gathered by a kernel,
// others by copies.
//
// Errors: as above, and errc::bad_destination if nobody here can write to `destination`; errc::wrong_gpu and
//   errc::unusable_stream, before anything happens; what the CUDA driver reports, in cuda_category(): the bytes that
//   were not placed are still in the stream, unless transport copy had taken them from the socket (then every later
//   operation reports it as well).
// Cost: transport devmem one kernel launch per recvmsg; transport copy one copy across PCIe per 512 KiB, of which three
// may
//   be under way: a larger read completes only as its stream goes on, so that stream must not wait for the completion.
template <asio::completion_token_for<void(error_code, std::size_t)> Token = asio::use_awaitable_t<>>
auto async_read(receiver& from, device_span destination, cuda_stream_ref stream, Token&& token = Token())
{
    return asio::async_initiate<Token, void(error_code, std::size_t)>(
        detail::initiation{from.get_executor(),
                           [](auto state, device_span to, cuda_stream_ref on, auto site, auto&& handler) {
                               detail::start_read_device(std::move(state), to, on, std::move(site),
                                                         std::forward<decltype(handler)>(handler));
                           }},
        token, detail::receiver_access::state(from), destination, stream);
}

template <asio::completion_token_for<void(error_code, std::size_t)> Token = asio::use_awaitable_t<>>
auto async_read(receiver& from, device_span destination, Token&& token = Token())
{
    return async_read(from, destination, cuda_stream_ref{}, std::forward<Token>(token));
}

}  // namespace gpurx
