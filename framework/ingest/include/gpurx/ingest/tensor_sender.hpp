// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Senders, which send rows of tensors to a tensor_stream through connections that may break.
///
/// A sender speaks version 2 of docs/tensor-stream.md. It needs no GPU and no rx_session:
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

// Compiled once; the templates only erase the handler's type. `frame`: of an operation that sends one.
void start_sending(std::shared_ptr<sender_state> state, sending what, std::shared_ptr<kept_frame> frame,
                   sender_handler handler);
// Makes the exception of a failed co_await (use_awaitable.hpp).
[[nodiscard]] std::exception_ptr failure_of(std::shared_ptr<sender_state> const& state, error_code code) noexcept;

}  // namespace detail

/// @brief A view of the rows of one tensor in a frame. It does not own the bytes.
struct tensor_view {
    /// @brief Name, type and row shape.
    tensor_spec spec;
    /// @brief Bytes of the rows, one after the other, row-major: the number of rows times row_size() of `spec`.
    std::span<std::byte const> bytes;
};

/// @brief Options of a sender. Set either `address` or `listen`.
struct tensor_sender_options {
    /// @brief Address of the listening receiver: `HOST:PORT`, with an IPv6 address in brackets.
    ///
    /// Each attempt resolves a name anew.
    std::string address{};
    /// @brief Endpoint to listen on. The receiver connects (tensor_stream_options::connect).
    std::optional<asio::ip::tcp::endpoint> listen{};

    /// @brief Number of the sender. No other sender of the stream has it, now or before.
    std::uint32_t source = 0;
    /// @brief Whether a restarted process sends the same rows once more from the first.
    ///
    /// The sender does not send frames that the receiver has.
    bool resume = false;
    /// @brief Secret of the stream, of at least 16 bytes. Empty: none.
    ///
    /// Both sides prove that they know it, and never send it.
    std::string secret{};
    /// @brief Whether each frame has CRC32Cs.
    ///
    /// Without them the receiver does not see errors that TCP's checksum misses.
    bool crc32c = true;

    /// @brief Time to wait for the first connection, with pauses that grow to 2 s. Zero: one attempt.
    std::chrono::milliseconds connect_timeout{std::chrono::minutes{1}};
    /// @brief Time to replace connections without an acknowledgement of anything new. Zero: a lost one is an error.
    std::chrono::milliseconds reconnect_timeout{std::chrono::seconds{30}};
    /// @brief Time that an operation waits without a byte in either direction. Zero: no limit.
    ///
    /// With zero, the answer to the first bytes of a connection still has a limit of a minute.
    std::chrono::milliseconds timeout{};

    /// @brief Most bytes of frames that the sender keeps until the receiver acknowledges them.
    ///
    /// A larger frame is sent alone. A receiver that acknowledges taken rows must be able to make a batch of less than
    /// this.
    std::uint64_t window = std::uint64_t{256} << 20;
};

/// @brief Counters of a sender, by value, at one moment.
struct tensor_sender_stats {
    std::uint64_t connections = 0;  ///< Connections that the sender had.
    std::uint64_t frames = 0;       ///< Frames written to a connection. A frame written again counts again.
    std::uint64_t bytes = 0;        ///< Bytes of these frames, heads included.
};

/// @brief A sender of one source of a tensor_stream.
///
/// Frames have numbers from 0. The sender keeps a frame until the receiver acknowledges it. The receiver does so when
/// it has the frame, or when its rows were taken or saved there (tensor_stream_options::acknowledge). The sender
/// replaces a connection that ends. The next one continues with the first frame that the receiver does not have.
///
/// Nothing runs between two operations: an operation connects, writes and reads acknowledgements. The next operation
/// notices that a connection has ended. It must come within the receiver's `reconnect_timeout` and `stall_timeout`.
///
/// @par Executor
/// The sender runs on the executor of its construction, and completes on the handler's. The rules of receiver.hpp hold
/// for executor, token, lifetimes and cancellation.
///
/// @par Token
/// Completion token with the signature `void(error_code)`, for each operation.
///
/// @par Allocation
/// The handler's associated allocator serves its erasure and its dispatch. Coroutine frames come from Asio's recycling
/// allocator.
///
/// @par Concurrency
/// One operation runs at a time. A second one completes with gpurx::errc::already_running and disturbs nothing.
///
/// @par Per-operation cancellation
/// Terminal, partial and total; total only until a frame is kept. Cancellation breaks no connection. After
/// `operation_aborted` of an operation that sends a frame, compare next_frame(). If it has not changed, the frame is
/// not kept, and never arrives. If it is one more, the frame is kept. It may have arrived, and goes with the next
/// operation.
///
/// @par Errors
/// All errors but the first three end the sender, and every later operation has the same error.
/// - `invalid_argument`, before a byte is sent: the frame cannot be sent, and why() tells the reason. The next frame
///   may be sent.
/// - gpurx::errc::already_running, `operation_aborted`, `no_memory`.
/// - The error of the first connection: no receiver listens, or `connect_timeout` is over. Another operation tries
///   again.
/// - errc::wrong_secret: one side has no secret or another one, or the receiver does not prove that it has this one.
/// - errc::wrong_source: the receiver has no source of this number, or another sender of it has sent.
/// - errc::stream_cut: the source has failed there, or the receiver begins with a frame that is not kept any more.
/// - `protocol_error`: the peer is no receiver of version 2.
/// - `timed_out`: `timeout` is over.
/// - The error that ended a connection, once `reconnect_timeout` is over.
///
/// @par Lifetime
/// The destructor ends the sender as abort() does, and a pending operation completes with `operation_aborted`. Destroy
/// the sender before its execution context. A moved-from sender may be assigned to and destroyed.
///
/// @par Thread safety
/// Distinct senders are safe. One sender belongs to one strand.
class tensor_sender {
  public:
    /// @brief Type of the executor.
    using executor_type = asio::any_io_executor;

    /// @brief Constructs a sender, without connecting.
    /// @throws system_error `EINVAL`: options contradict each other, and the text tells which. The errors of listening.
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
    /// @brief Returns the endpoint that the sender listens on; empty without `tensor_sender_options::listen`.
    ///
    /// It has the port that the system chose if the options left the choice to it.
    [[nodiscard]] std::optional<asio::ip::tcp::endpoint> local_endpoint() const;

    /// @brief Returns the number of the next frame, which is the number of frames sent or kept.
    [[nodiscard]] std::uint64_t next_frame() const noexcept;
    /// @brief Returns the number of frames that the receiver has, or that this connection has sent to it.
    ///
    /// A sender that resumes need not send so many of the first frames after async_greet(), but may.
    [[nodiscard]] std::uint64_t received() const noexcept;
    /// @brief Returns the number of frames that the receiver has acknowledged.
    ///
    /// The call reads acknowledgements that have come, and does not wait.
    [[nodiscard]] std::uint64_t acknowledged() noexcept;
    /// @brief Returns the counters.
    [[nodiscard]] tensor_sender_stats stats() const noexcept;
    /// @brief Returns the diagnostics of the last failure, also of a replaced connection (error.hpp).
    [[nodiscard]] diagnostics why() const;

    /// @brief Waits for the first connection, as every other operation does.
    ///
    /// The sender sends nothing on it. A receiver may drop it until the next operation, which does no harm.
    ///
    /// @param token Completion token with the signature `void(error_code)`.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_connect(Token&& token = Token())
    {
        return initiate(detail::sending::connect, nullptr, std::forward<Token>(token));
    }
    /// @brief Begins a connection if none has begun.
    ///
    /// Both sides prove the secret. Afterwards received() tells the frames that the receiver has.
    ///
    /// @param token Completion token with the signature `void(error_code)`.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_greet(Token&& token = Token())
    {
        return initiate(detail::sending::greet, nullptr, std::forward<Token>(token));
    }

    /// @brief Sends a frame, with a copy of its bytes that is made before the call returns.
    ///
    /// The operation completes when the frame is kept and written. That is no acknowledgement. The operation waits
    /// while the window has no room. All frames have the same tensors in the same order.
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
    /// The sender releases `owner` when the frame is acknowledged, or the sender has ended. The bytes must not change
    /// until then. Any thread of the executor may release it.
    ///
    /// @par Cost
    /// One CRC32C of the bytes, and one `sendmsg` for as many as the socket takes.
    template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
    auto async_send(std::span<tensor_view const> tensors, std::shared_ptr<void const> owner, Token&& token = Token())
    {
        return initiate(detail::sending::send, view_of(tensors, std::move(owner)), std::forward<Token>(token));
    }
    /// @brief Ends an epoch: sends a frame without rows. Later frames belong to the next epoch.
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
    /// @brief Sends a last frame without rows, waits until all frames are acknowledged, and sends the goodbye.
    ///
    /// Later sends complete with `asio::error::shut_down`, and a later async_close() succeeds at once. After
    /// `operation_aborted` with the last frame kept, another async_close() continues.
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
    /// The receiver sees only the end of the connection, and the source ends with errc::stream_cut there. A pending
    /// operation, and every later one, completes with `operation_aborted`.
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
