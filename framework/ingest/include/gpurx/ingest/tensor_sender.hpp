// SPDX-License-Identifier: Apache-2.0
//
// tensor_sender: sends rows of tensors to a tensor_stream, through connections that may be cut. It speaks version 2 of
// docs/tensor-stream.md. It needs no GPU and no rx_session:
//     // In a coroutine, given executor
//     gpurx::ingest::tensor_sender sender{executor, {.address = "10.77.0.1:9000", .source = 3}};
//     std::vector<float> const x(4 * 3);  // 4 rows of 3
//     gpurx::ingest::tensor_view const tensors[] = {
//         {{"x", gpurx::ingest::dtype::f32, {3}}, std::as_bytes(std::span{x})}};
//     co_await sender.async_send(tensors);
//     co_await sender.async_close();
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <gpurx/detail/initiation.hpp>
#include <gpurx/ingest/tensor_spec.hpp>
#include <gpurx/use_awaitable.hpp>

namespace gpurx::ingest {

namespace detail {

class sender_state;
struct kept_frame;

enum class sending : std::uint8_t { connect, greet, send, flush, close };

using sender_handler = asio::any_completion_handler<void(error_code)>;

// Compiled once; the templates only erase the handler's type. `frame`: of an operation that sends one.
void start_sending(std::shared_ptr<sender_state> state, sending what, std::shared_ptr<kept_frame> frame,
                   sender_handler handler);
// Makes the exception of a failed co_await (use_awaitable.hpp).
[[nodiscard]] std::exception_ptr failure_of(std::shared_ptr<sender_state> const& state, error_code code) noexcept;

}  // namespace detail

// The rows of one tensor in a frame. It has no owner.
struct tensor_view {
    tensor_spec spec;
    std::span<std::byte const> bytes;  // row after row, row-major: the rows times row_size(spec)
};

struct tensor_sender_options {
    // Either: where the receiver listens, HOST:PORT, with a v6 address in brackets. Each attempt looks a name up anew.
    std::string address{};
    // Or: where to listen. The receiver connects (tensor_stream_options::connect).
    std::optional<asio::ip::tcp::endpoint> listen{};

    // The sender's number. No other sender of the stream has it, now or before.
    std::uint32_t source = 0;
    // The process was started again, and sends the same rows once more from the first. Frames that the receiver has
    // are not sent.
    bool resume = false;
    // The stream's secret, of at least 16 bytes. Both sides prove that they know it, without saying it. Empty: none.
    std::string secret{};
    // Each frame has CRC32Cs. Without them the receiver does not see what TCP's checksum misses.
    bool crc32c = true;

    // How long the first connection is waited for, with pauses that grow to 2 s. Zero: one attempt.
    std::chrono::milliseconds connect_timeout{std::chrono::minutes{1}};
    // How long connections are replaced without an acknowledgement of something new. Zero: a lost one is an error.
    std::chrono::milliseconds reconnect_timeout{std::chrono::seconds{30}};
    // How long an operation waits without a byte in either direction. Zero: without limit, but for the answer to the
    // first bytes of a connection, which has a minute.
    std::chrono::milliseconds timeout{};

    // Bytes of frames that are kept until the receiver acknowledges them. A larger frame is sent alone. A receiver that
    // acknowledges what was taken has to be able to make a batch of less than this.
    std::uint64_t window = std::uint64_t{256} << 20;
};

// By value, at one moment.
struct tensor_sender_stats {
    std::uint64_t connections = 0;  // that there were
    std::uint64_t frames = 0;       // written to a connection; one that was written again counts again
    std::uint64_t bytes = 0;        // of frames, heads included, likewise
};

// A frame has a number, from 0, and is kept until the receiver acknowledges it: when it has the frame, or when its rows
// were taken or saved there (tensor_stream_options::acknowledge). A connection that ends is replaced, and the next one
// goes on with the first frame that the receiver does not have.
//
// Nothing runs between two operations: an operation connects, writes, and reads acknowledgements. The next one notices
// that a connection has ended, and has to come within the receiver's reconnect_timeout and stall_timeout.
//
// The rules of receiver.hpp hold for executor, token, lifetimes and cancellation; the handler's associated allocator
// serves its erasure and its dispatch, coroutine frames come from Asio's recycling allocator. The sender runs on the
// executor that it was made with, and completes on the handler's. One operation at a time: a second completes with
// gpurx::errc::already_running and disturbs nothing. Signature of each: void(error_code).
//
// Per-operation cancellation: terminal, partial and total, total only until a frame is kept. No connection breaks by
// it. operation_aborted of an operation that sends a frame: next_frame() tells. If it is what it was, the frame is not
// kept, and never arrives. If it is one more, the frame is kept, may have arrived, and goes with the next operation.
//
// Errors of each operation; but for the first three they end the sender, and every later operation has the same:
//   invalid_argument, before a byte: what cannot be sent, and why() says why; the next frame may be sent.
//   gpurx::errc::already_running; operation_aborted; no_memory.
//   What the first connection failed with: nobody listens, connect_timeout is over. Another operation tries again.
//   errc::wrong_secret: one side has no secret or another one, or the receiver does not prove that it has this one.
//   errc::wrong_source: the receiver has no source of this number, or another sender of it has sent.
//   errc::stream_cut: the source has failed there, or the receiver begins with a frame that is not kept any more.
//   protocol_error: who answers is no receiver of version 2.
//   timed_out: timeout is over. What a connection ended with, once reconnect_timeout is over.
//
// Lifetime: destroying it ends it as abort() does, and completes a pending operation with operation_aborted. It must be
// destroyed before its execution context. One that was moved from may be assigned to and destroyed. Thread safety:
// distinct senders are safe; one belongs to one strand.
class tensor_sender {
  public:
    using executor_type = asio::any_io_executor;

    // Connects nothing. Throws system_error: EINVAL for options that contradict themselves, with the text saying which;
    // what listening reports.
    tensor_sender(executor_type executor, tensor_sender_options options);
    template <class ExecutionContext>
    requires std::convertible_to<ExecutionContext&, asio::execution_context&> tensor_sender(
        ExecutionContext& context, tensor_sender_options options)
        : tensor_sender(executor_type{context.get_executor()}, std::move(options))
    {}
    tensor_sender(tensor_sender&&) noexcept;
    tensor_sender& operator=(tensor_sender&&) noexcept;
    ~tensor_sender();

    [[nodiscard]] executor_type get_executor() const noexcept;
    // Where it listens: with the port, where the options left that to the system. Empty without options::listen.
    [[nodiscard]] std::optional<asio::ip::tcp::endpoint> local_endpoint() const;

    // The number of the next frame: so many were sent, or are kept.
    [[nodiscard]] std::uint64_t next_frame() const noexcept;
    // Frames that the receiver has, or was sent through this connection. Of a sender that resumes, after async_greet:
    // so many of the first need not be sent, but may.
    [[nodiscard]] std::uint64_t received() const noexcept;
    // Frames that the receiver has acknowledged. Reads what has come, and does not wait.
    [[nodiscard]] std::uint64_t acknowledged() noexcept;
    [[nodiscard]] tensor_sender_stats stats() const noexcept;
    // What the last failure was, also of a connection that was replaced: the words for an error_code (error.hpp).
    [[nodiscard]] diagnostics why() const;

    // Waits for the first connection, which every other operation does as well. Nothing is said on it: a receiver may
    // give it up until the next operation, which does no harm.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_connect(Token&& token = Token())
    {
        return initiate(detail::sending::connect, nullptr, std::forward<Token>(token));
    }
    // Begins a connection, if none has begun: both sides prove the secret, and received() is what the receiver has.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_greet(Token&& token = Token())
    {
        return initiate(detail::sending::greet, nullptr, std::forward<Token>(token));
    }

    // Sends a frame: completes when it is kept and written, which is no acknowledgement. All frames have the same
    // tensors in the same order. Waits while the window has no room.
    // Copies the bytes before it returns.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    requires(!std::convertible_to<Token, std::shared_ptr<void const>>) auto async_send(
        std::span<tensor_view const> tensors, Token&& token = Token())
    {
        return initiate(detail::sending::send, copy_of(tensors), std::forward<Token>(token));
    }
    // Copies nothing: `owner` keeps the bytes, and is let go when the frame is acknowledged, or the sender has ended.
    // The bytes must not change until then. Any thread of the executor may let it go.
    // Cost: one CRC32C of the bytes, one sendmsg for what the socket takes.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_send(std::span<tensor_view const> tensors, std::shared_ptr<void const> owner, Token&& token = Token())
    {
        return initiate(detail::sending::send, view_of(tensors, std::move(owner)), std::forward<Token>(token));
    }
    // Sends a frame without rows: what was sent so far is one epoch, and what follows belongs to the next.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_end_epoch(Token&& token = Token())
    {
        return initiate(detail::sending::send, end_of_epoch(), std::forward<Token>(token));
    }
    // Waits until everything is acknowledged.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_flush(Token&& token = Token())
    {
        return initiate(detail::sending::flush, nullptr, std::forward<Token>(token));
    }
    // Sends the last frame, which has no rows, waits until everything is acknowledged, and says goodbye. Later sends
    // complete with asio::error::shut_down, and a later async_close succeeds at once. After operation_aborted with the
    // last frame kept, another async_close goes on.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_close(Token&& token = Token())
    {
        return initiate(detail::sending::close, copy_of({}), std::forward<Token>(token));
    }
    // The same, with a last frame of these rows; the bytes are as those of async_send.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_close(std::span<tensor_view const> tensors, std::shared_ptr<void const> owner, Token&& token = Token())
    {
        return initiate(detail::sending::close, view_of(tensors, std::move(owner)), std::forward<Token>(token));
    }

    // Ends the connection without a last frame, and drops what is kept. The receiver is told by nothing but the end of
    // the connection, and takes the source for cut. A pending operation, and every later one, completes with
    // operation_aborted.
    void abort() noexcept;
    // A pending operation completes with operation_aborted, as by its cancellation slot.
    void cancel() noexcept;

  private:
    [[nodiscard]] static std::shared_ptr<detail::kept_frame> view_of(std::span<tensor_view const> tensors,
                                                                     std::shared_ptr<void const> owner);
    [[nodiscard]] static std::shared_ptr<detail::kept_frame> copy_of(std::span<tensor_view const> tensors);
    [[nodiscard]] static std::shared_ptr<detail::kept_frame> end_of_epoch();

    template <class Token>
    auto initiate(detail::sending what, std::shared_ptr<detail::kept_frame> frame, Token&& token)
    {
        return asio::async_initiate<Token, void(error_code)>(
            gpurx::detail::initiation{get_executor(),
                                      [what](auto of, auto of_frame, auto /*site*/, auto&& handler) {
                                          detail::start_sending(std::move(of), what, std::move(of_frame),
                                                                std::forward<decltype(handler)>(handler));
                                      }},
            token, state_, std::move(frame));
    }

    std::shared_ptr<detail::sender_state> state_;
};

}  // namespace gpurx::ingest
