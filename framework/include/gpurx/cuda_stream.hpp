// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief CUDA streams for programs without a CUDA header: cuda_stream, order_after() and async_wait().
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/execution_context.hpp>
#include <concepts>
#include <exception>
#include <utility>

#include <gpurx/detail/initiation.hpp>
#include <gpurx/error.hpp>
#include <gpurx/use_awaitable.hpp>
#include <gpurx/views.hpp>

namespace gpurx {

/// @brief A move-only owner of a CUDA stream, or of none.
///
/// @par Lifetime
/// As cuda_stream_ref. The destructor does not wait: enqueued work still runs. It makes no driver call once the process
/// ends.
///
/// @par Thread safety
/// Distinct objects are independent. Several threads may enqueue work on one stream.
class cuda_stream {
  public:
    /// @brief Constructs an owner of no stream.
    cuda_stream() noexcept = default;
    /// @brief Creates a stream in the primary context of a GPU, which PyTorch and the CUDA runtime share.
    ///
    /// The stream does not wait for the default stream, nor does the default stream wait for it
    /// (`CU_STREAM_NON_BLOCKING`).
    ///
    /// @param ordinal CUDA ordinal of the GPU.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// errc::no_cuda, and the driver's errors.
    [[nodiscard]] static cuda_stream on(int ordinal);
    /// @brief Sets `code` and `why` instead of throwing; otherwise as the overload above.
    [[nodiscard]] static cuda_stream on(int ordinal, error_code& code, diagnostics& why);

    /// @brief Moves the stream; `other` owns none afterwards.
    cuda_stream(cuda_stream&& other) noexcept : handle_{std::exchange(other.handle_, nullptr)} {}
    /// @brief Swaps the streams.
    cuda_stream& operator=(cuda_stream&& other) noexcept
    {
        std::swap(handle_, other.handle_);
        return *this;
    }
    /// @brief Destroys the stream without waiting for its work.
    ~cuda_stream();

    /// @brief Returns the handle, or null.
    [[nodiscard]] CUstream_st* get() const noexcept { return handle_; }
    /// @brief Returns whether it owns a stream.
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    /// @brief Converts to a non-owning view.
    operator cuda_stream_ref() const noexcept { return cuda_stream_ref{handle_}; }

  private:
    explicit cuda_stream(CUstream_st* handle) noexcept : handle_{handle} {}

    CUstream_st* handle_ = nullptr;
};

/// @brief Orders work enqueued on `later` from now on after work enqueued on `earlier` so far.
///
/// The host does not wait. A default stream is that of the other stream's GPU (`cuda_stream_ref{}`, `CU_STREAM_LEGACY`,
/// `CU_STREAM_PER_THREAD`). It is the stream of the caller's current context if the context belongs to that GPU,
/// otherwise of its primary context. The call does nothing for the same stream twice, or for two empty ones.
///
/// @throws system_error See Errors.
///
/// @par Errors
/// - errc::unusable_stream: a stream is being captured.
/// - errc::no_cuda.
/// - The driver's errors, in cuda_category(). One is `CUDA_ERROR_INVALID_CONTEXT`: two default streams differ, and no
///   context is current.
///
/// @par Cost
/// Two driver calls, and some to inspect the streams.
///
/// @par Thread safety
/// The function may be called at the same time.
void order_after(cuda_stream_ref later, cuda_stream_ref earlier);
/// @brief Sets `code` instead of throwing; otherwise as the overload above.
void order_after(cuda_stream_ref later, cuda_stream_ref earlier, error_code& code) noexcept;

namespace detail {

using wait_handler = asio::any_completion_handler<void(error_code)>;

// The work to wait for.
struct stream_work {
    cuda_stream_ref stream;
    memory_span memory;
};
void start_wait(asio::any_io_executor executor, stream_work what, completion_site site, wait_handler handler);
[[nodiscard]] std::exception_ptr failure_of(stream_work const& what, error_code code) noexcept;

}  // namespace detail

/// @brief Waits asynchronously until all work enqueued on `stream` before the operation began has finished.
///
/// The operation needs no thread of the program: a thread of the library inspects streams (docs/gpu.md). The rules of
/// operations in receiver.hpp hold.
///
/// @param executor Default executor of the handler. It belongs to an `io_context`, or to another context in which Asio
///   can create descriptors.
/// @param stream Stream to wait for. An empty stream without `memory` has no work.
/// @param memory Memory that the work uses. It selects the GPU of a default stream. Host memory without a stream has no
///   work.
/// @param token Completion token with the signature `void(error_code)`.
///
/// @par Executor
/// The handler runs on its associated executor, by default `executor`, and never inside the initiating function.
///
/// @par Lifetime
/// The stream must outlive the operation, unless it is a cuda_stream.
///
/// @par Per-operation cancellation
/// Terminal, partial and total. The work continues.
///
/// @par Errors
/// - The GPU's error, if the GPU is in a permanent error state. The enqueued work is not done then.
/// - errc::unusable_stream: the stream is being captured, or is `CU_STREAM_PER_THREAD`, as a deferred operation may
///   begin in any thread.
/// - errc::no_cuda.
/// - The system's error, if it has no descriptor left.
///
/// @par Cost
/// An event, a descriptor, and a wait of the reactor. The operation completes some 80 us after the stream has passed,
/// or after a 64th of the time it took, at most 1 ms.
template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
auto async_wait(asio::any_io_executor executor, cuda_stream_ref stream, memory_span memory, Token&& token = Token())
{
    return asio::async_initiate<Token, void(error_code)>(
        detail::initiation{executor,
                           [executor](detail::stream_work what, auto site, auto&& handler) {
                               detail::start_wait(executor, what, std::move(site),
                                                  std::forward<decltype(handler)>(handler));
                           }},
        token, detail::stream_work{stream, memory});
}
/// @brief Waits for the stream without naming the memory; otherwise as above.
template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
auto async_wait(asio::any_io_executor executor, cuda_stream_ref stream, Token&& token = Token())
{
    return async_wait(std::move(executor), stream, memory_span{}, std::forward<Token>(token));
}

}  // namespace gpurx
