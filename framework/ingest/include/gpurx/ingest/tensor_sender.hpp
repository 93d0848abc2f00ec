// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Senders of rows of tensors to a tensor_stream.
///
/// A sender replaces broken connections. It speaks version 2 of docs/tensor-stream.md. It needs no GPU and no
/// rx_session:
/// @code{.cpp}
/// // In a coroutine, given executor
/// gpurx::ingest::tensor_sender sender{executor, {.address = "10.77.0.1:9000", .source = 3}};
/// std::vector<float> const x(4 * 3);  // 4 rows of 3
/// gpurx::ingest::tensor_view const tensors[] = {
///     {{"x", gpurx::ingest::dtype::f32, {3}}, std::as_bytes(std::span{x})}};
/// co_await sender.async_send(tensors);
/// co_await sender.async_close();
/// @endcode
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

// Compiled once; the templates only erase the handler's type. `frame`: frame of the operation, or null.
void start_sending(std::shared_ptr<sender_state> state, sending what, std::shared_ptr<kept_frame> frame,
                   sender_handler handler);
// Makes the exception of a failed co_await (use_awaitable.hpp).
[[nodiscard]] std::exception_ptr failure_of(std::shared_ptr<sender_state> const& state, error_code code) noexcept;

}  // namespace detail

/// @brief A non-owning view of the rows of one tensor in a frame.
struct tensor_view {
    /// @brief Name, type and row shape.
    tensor_spec spec;
    /// @brief Bytes of the rows, one after the other, row-major.
    ///
    /// The size is the number of rows times row_size() of `spec`.
    std::span<std::byte const> bytes;
};

/// @brief Options of a sender. Set either `address` or `listen`.
struct tensor_sender_options {
    /// @brief Address of the listening receiver: `HOST:PORT`, with an IPv6 address in brackets.
    ///
    /// Each attempt resolves the name again.
    std::string address{};
    /// @brief Endpoint to listen on. The receiver connects (tensor_stream_options::connect).
    std::optional<asio::ip::tcp::endpoint> listen{};

    /// @brief Number of the sender, unique in the stream.
    ///
    /// No other sender of the stream may have it, now or earlier.
    std::uint32_t source = 0;
    /// @brief Whether a restarted process sends the same rows again from the first.
    ///
    /// The sender skips frames that the receiver has.
    bool resume = false;
    /// @brief Secret of the stream, of at least 16 bytes. Empty: none.
    ///
    /// Both sides prove that they know it, without sending it.
    std::string secret{};
    /// @brief Whether each frame has CRC32Cs.
    ///
    /// Without them the receiver does not detect errors that TCP's checksum misses.
    bool crc32c = true;

    /// @brief Time to wait for the first connection. Zero: one attempt.
    ///
    /// Pauses between attempts grow to 2 s.
    std::chrono::milliseconds connect_timeout{std::chrono::minutes{1}};
    /// @brief Time to replace connections without a new acknowledgement.
    ///
    /// Zero: a lost connection is an error.
    std::chrono::milliseconds reconnect_timeout{std::chrono::seconds{30}};
    /// @brief Time that an operation waits without a byte in either direction. Zero: no limit.
    ///
    /// With zero, the response to the first bytes of a connection still has a limit of one minute.
    std::chrono::milliseconds timeout{};

    /// @brief Most bytes of frames that the sender keeps until the receiver acknowledges them.
    ///
    /// The sender sends a larger frame alone. A receiver with acknowledge_when::taken must be able to make a batch of
    /// fewer bytes than this.
    std::uint64_t window = std::uint64_t{256} << 20;
};

/// @brief Counters of a sender, by value, at one moment.
struct tensor_sender_stats {
    std::uint64_t connections = 0;  ///< Connections so far.
    std::uint64_t frames = 0;       ///< Frames written to a connection. A frame written again counts again.
    std::uint64_t bytes = 0;        ///< Bytes of these frames, heads included.
};

/// @brief A sender: sends the frames of one source to a tensor_stream.
///
/// Frames have numbers from 0. The sender keeps a frame until the receiver acknowledges it. The receiver acknowledges a
/// frame when it has received it, or when its rows were taken or saved (tensor_stream_options::acknowledge). If a
/// connection ends, the sender replaces it. The next connection continues with the first frame that the receiver does
/// not have.
///
/// Nothing runs between two operations: an operation connects, writes and reads acknowledgements. The next operation
/// detects that a connection has ended. It must begin within the receiver's `reconnect_timeout` and `stall_timeout`.
///
/// @par Executor
/// Operations run on the constructor's executor, and complete on the handler's. The rules of receiver.hpp hold for
/// executor, token, lifetimes and cancellation.
///
/// @par Token
/// Completion token with the signature `void(error_code)`, for each operation.
///
/// @par Allocation
/// The handler's associated allocator serves its type erasure and its dispatch. Coroutine frames come from Asio's
/// recycling allocator.
///
/// @par Concurrency
/// One operation runs at a time. A second one completes with gpurx::errc::already_running and does not affect the
/// first.
///
/// @par Per-operation cancellation
/// Terminal, partial and total; total only until the sender keeps the frame. Cancellation does not break the
/// connection. If an operation that sends a frame completes with `operation_aborted`, compare next_frame() with its
/// earlier value:
/// - Unchanged: the sender has not kept the frame, and it never arrives.
/// - One more: the sender has kept the frame. It may have arrived; otherwise the next operation sends it.
///
/// @par Errors
/// All errors except the first three items end the sender. Every later operation then completes with the same error.
/// - `invalid_argument`: the frame cannot be sent, and why() has the reason. No byte was sent. The next frame may be
///   sent.
/// - gpurx::errc::already_running, `operation_aborted`, `no_memory`.
/// - The error of the first connection: the receiver does not listen, or `connect_timeout` is over. Another operation
///   tries again.
/// - errc::wrong_secret: one side has no secret or another secret, or the receiver does not prove that it knows this
///   secret.
/// - errc::wrong_source: the receiver has no source of this number, or another sender with this number has sent.
/// - errc::stream_cut: the source has failed at the receiver, or the receiver requests a frame that the sender no
///   longer keeps.
/// - `protocol_error`: the peer is not a receiver of version 2.
/// - `timed_out`: `timeout` is over.
/// - The error that ended a connection, once `reconnect_timeout` is over.
///
/// @par Lifetime
/// The destructor ends the sender as abort() does, and a pending operation completes with `operation_aborted`. Destroy
/// the sender before its execution context. A moved-from sender may only be assigned to and destroyed.
///
/// @par Thread safety
/// Distinct senders are safe. One sender is unsafe: use it on one strand.
class tensor_sender {
  public:
    /// @brief Type of the executor.
    using executor_type = asio::any_io_executor;

    /// @brief Constructs a sender, without connecting.
    /// @throws system_error `EINVAL`: options contradict each other; the text names them. The errors of listening.
    tensor_sender(executor_type executor, tensor_sender_options options);
    /// @brief Constructs a sender with the executor of an execution context; otherwise as above.
    /// @tparam ExecutionContext A type that converts to `asio::execution_context&`.
    template <class ExecutionContext>
    requires std::convertible_to<ExecutionContext&, asio::execution_context&> tensor_sender(
        ExecutionContext& context, tensor_sender_options options)
        : tensor_sender(executor_type{context.get_executor()}, std::move(options))
    {}
    /// @brief Moves the sender.
    tensor_sender(tensor_sender&&) noexcept;
    /// @brief Ends the present sender, as the destructor does, and moves the other.
    tensor_sender& operator=(tensor_sender&&) noexcept;
    /// @brief Ends the sender as abort() does. A pending operation completes with `operation_aborted`.
    ~tensor_sender();

    /// @brief Returns the executor.
    [[nodiscard]] executor_type get_executor() const noexcept;
    /// @brief Returns the endpoint that the sender listens on.
    ///
    /// Empty without `tensor_sender_options::listen`.
    ///
    /// If the options have port 0, the endpoint has the port that the system chose.
    [[nodiscard]] std::optional<asio::ip::tcp::endpoint> local_endpoint() const;

    /// @brief Returns the number of the next frame: the number of frames sent or kept.
    [[nodiscard]] std::uint64_t next_frame() const noexcept;
    /// @brief Returns the number of frames that the receiver has.
    ///
    /// Frames that this connection has sent count too.
    ///
    /// After async_greet(), a sender that resumes may skip this number of first frames, but need not.
    [[nodiscard]] std::uint64_t received() const noexcept;
    /// @brief Returns the number of frames that the receiver has acknowledged.
    ///
    /// The call reads acknowledgements that have arrived, and does not wait.
    [[nodiscard]] std::uint64_t acknowledged() noexcept;
    /// @brief Returns the counters.
    [[nodiscard]] tensor_sender_stats stats() const noexcept;
    /// @brief Returns the diagnostics of the last failure (error.hpp).
    ///
    /// Failures of replaced connections count too.
    [[nodiscard]] diagnostics why() const;

    /// @brief Waits for the first connection.
    ///
    /// Every other operation also does so.
    ///
    /// The operation sends nothing. The receiver may drop the connection before the next operation; that does no harm.
    ///
    /// @param token Completion token with the signature `void(error_code)`.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_connect(Token&& token = Token())
    {
        return initiate(detail::sending::connect, nullptr, std::forward<Token>(token));
    }
    /// @brief Begins a connection if none has begun.
    ///
    /// Both sides prove that they know the secret. Afterwards received() returns the number of frames that the receiver
    /// has.
    ///
    /// @param token Completion token with the signature `void(error_code)`.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_greet(Token&& token = Token())
    {
        return initiate(detail::sending::greet, nullptr, std::forward<Token>(token));
    }

    /// @brief Sends a frame, with a copy of its bytes.
    ///
    /// The call makes the copy before it returns.
    ///
    /// The operation completes when the sender has kept and written the frame. Completion is not an acknowledgement.
    /// The operation waits while the window has no room. All frames must have the same tensors in the same order.
    ///
    /// @param tensors Tensors of the frame.
    /// @param token Completion token with the signature `void(error_code)`.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    requires(!std::convertible_to<Token, std::shared_ptr<void const>>) auto async_send(
        std::span<tensor_view const> tensors, Token&& token = Token())
    {
        return initiate(detail::sending::send, copy_of(tensors), std::forward<Token>(token));
    }
    /// @brief Sends a frame without a copy of its bytes; otherwise as above.
    ///
    /// @param tensors Tensors of the frame.
    /// @param owner Owner of the bytes.
    /// @param token Completion token with the signature `void(error_code)`.
    ///
    /// @par Lifetime
    /// The sender releases `owner` when the frame is acknowledged, or when the sender has ended. The bytes must not
    /// change until then. Any thread of the executor may release `owner`.
    ///
    /// @par Cost
    /// One CRC32C of the bytes, and one `sendmsg` for as many bytes as the socket takes.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_send(std::span<tensor_view const> tensors, std::shared_ptr<void const> owner, Token&& token = Token())
    {
        return initiate(detail::sending::send, view_of(tensors, std::move(owner)), std::forward<Token>(token));
    }
    /// @brief Ends an epoch by a frame without rows.
    ///
    /// Later frames belong to the next epoch.
    /// @param token Completion token with the signature `void(error_code)`.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_end_epoch(Token&& token = Token())
    {
        return initiate(detail::sending::send, end_of_epoch(), std::forward<Token>(token));
    }
    /// @brief Waits until the receiver has acknowledged all frames.
    /// @param token Completion token with the signature `void(error_code)`.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_flush(Token&& token = Token())
    {
        return initiate(detail::sending::flush, nullptr, std::forward<Token>(token));
    }
    /// @brief Ends the stream by a last frame without rows.
    ///
    /// The operation waits until the receiver has acknowledged all frames, then sends the goodbye.
    ///
    /// Later sends complete with `asio::error::shut_down`. A later async_close() succeeds at once. If the operation
    /// completes with `operation_aborted` and the sender has kept the last frame, another async_close() continues.
    ///
    /// @param token Completion token with the signature `void(error_code)`.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_close(Token&& token = Token())
    {
        return initiate(detail::sending::close, copy_of({}), std::forward<Token>(token));
    }
    /// @brief Sends a last frame with rows; otherwise as above.
    /// @param tensors Tensors of the frame.
    /// @param owner Owner of the bytes, as for async_send().
    /// @param token Completion token with the signature `void(error_code)`.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_close(std::span<tensor_view const> tensors, std::shared_ptr<void const> owner, Token&& token = Token())
    {
        return initiate(detail::sending::close, view_of(tensors, std::move(owner)), std::forward<Token>(token));
    }

    /// @brief Ends the connection without a last frame, and drops kept frames.
    ///
    /// The receiver sees only the end of the connection; its source ends with errc::stream_cut. A pending operation,
    /// and every later one, completes with `operation_aborted`.
    void abort() noexcept;
    /// @brief Completes a pending operation with `operation_aborted`, as its cancellation slot does.
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
