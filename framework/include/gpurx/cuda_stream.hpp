// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief CUDA streams without a CUDA header: cuda_stream, order_after(), stream_fork, async_wait().
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/execution_context.hpp>
#include <concepts>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <utility>

#include <gpurx/detail/initiation.hpp>
#include <gpurx/error.hpp>
#include <gpurx/use_awaitable.hpp>
#include <gpurx/views.hpp>

namespace gpurx {

/// @brief A move-only owner of a CUDA stream, or of none.
///
/// @par Lifetime
/// The stream must outlive every operation that uses it, as with cuda_stream_ref. The destructor does not wait:
/// enqueued work still runs. It makes no driver call while the process ends.
///
/// @par Thread safety
/// Distinct objects are independent. Several threads may enqueue work on one stream.
class cuda_stream {
  public:
    /// @brief Constructs an owner of no stream.
    cuda_stream() noexcept = default;
    /// @brief Creates a stream in the primary context of a GPU.
    ///
    /// PyTorch and the CUDA runtime use the same context.
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
    /// @brief Returns whether the object owns a stream.
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    /// @brief Converts to a non-owning view.
    operator cuda_stream_ref() const noexcept { return cuda_stream_ref{handle_}; }

  private:
    explicit cuda_stream(CUstream_st* handle) noexcept : handle_{handle} {}

    CUstream_st* handle_ = nullptr;
};

/// @brief Makes stream `later` wait for work already enqueued on `earlier`.
///
/// Work that is enqueued on `later` after the call runs after work that was enqueued on `earlier` before the call.
///
/// The host does not wait. A default stream (`cuda_stream_ref{}`, `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`) belongs
/// to the other stream's GPU. Its context is the caller's current context if that belongs to the GPU, otherwise the
/// GPU's primary context. The call does nothing if both streams are the same, or both are empty.
///
/// @throws system_error See Errors.
///
/// @par Errors
/// - errc::unusable_stream: a stream is being captured.
/// - errc::no_cuda.
/// - The driver's errors, in cuda_category().
/// - `CUDA_ERROR_INVALID_CONTEXT`: the streams are two different default streams, and no context is current.
///
/// @par Cost
/// Two driver calls, and a few more to inspect the streams.
///
/// @par Thread safety
/// The function may be called at the same time.
void order_after(cuda_stream_ref later, cuda_stream_ref earlier);
/// @brief Sets `code` instead of throwing; otherwise as the overload above.
void order_after(cuda_stream_ref later, cuda_stream_ref earlier, error_code& code) noexcept;

namespace detail {

struct fork_state;

}  // namespace detail

/// @brief Streams beside one stream, for flows whose work may overlap.
///
/// Work on the streams waits for the work that is enqueued on the forked stream before the constructor returns. join()
/// makes later work on the forked stream wait for them.
///
/// The streams are of the GPU's primary context (`CU_STREAM_NON_BLOCKING`). The library keeps at most 32 for each GPU,
/// until the process ends, and uses them again. A fork has at most 8, or fewer if others use them.
///
/// A fork may have no stream. The forked stream then takes its place, which is no error: the context of the stream is
/// not primary, the memory is of several GPUs, the stream cannot be used, or the driver
/// refuses.
///
/// @par Lifetime
/// The forked stream must outlive the join, unless it is a cuda_stream. The destructor joins. If the cuda_stream was
/// destroyed before, or if the stream is being captured, join() waits for the work in the calling thread.
///
/// @par Thread safety
/// Distinct objects are independent. Several threads may use the streams, but none while join() runs.
class stream_fork {
  public:
    /// @brief Takes streams.
    ///
    /// @param stream Stream to fork.
    /// @param memory Memory of GPUs that the work uses. It selects the GPU of a default stream. If it is empty, there
    ///   is no stream.
    /// @param count Number of flows. With one there is no stream.
    ///
    /// @par Cost
    /// One event, and a wait for each stream. For a default stream also a driver call for each piece of `memory`.
    stream_fork(cuda_stream_ref stream, std::span<memory_span const> memory, std::size_t count) noexcept;
    stream_fork(stream_fork const&) = delete;
    stream_fork& operator=(stream_fork const&) = delete;
    /// @brief Joins.
    ~stream_fork();

    /// @brief Returns the stream of flow `number`. Flows share them if there are fewer. After join() it is the forked
    /// stream.
    [[nodiscard]] cuda_stream_ref operator[](std::size_t number) const noexcept;

    /// @brief Makes later work on the forked stream wait for the work on all streams.
    ///
    /// @par Cost
    /// An event and a wait for each stream.
    void join() noexcept;

  private:
    cuda_stream_ref stream_;
    std::unique_ptr<detail::fork_state> state_;
};

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

/// @brief Waits asynchronously for the work on a stream.
///
/// The operation completes when all work that was enqueued on `stream` before it began has finished.
///
/// It needs no thread of the program: a thread of the library inspects streams (docs/gpu.md). The rules of operations
/// in receiver.hpp hold.
///
/// @param executor Default executor of the handler. It must belong to an `io_context`, or to another context in which
///   Asio can create descriptors.
/// @param stream Stream to wait for. If empty and without `memory`, there is no work to wait for.
/// @param memory Memory that the work uses. It selects the GPU of a default stream. With host memory and an empty
///   stream, there is no work to wait for.
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
/// - The GPU's error: the GPU is in a permanent error state. The enqueued work is not done then.
/// - errc::unusable_stream: the stream is being captured, or is `CU_STREAM_PER_THREAD`. A deferred operation may begin
///   in any thread, so that stream would be ambiguous.
/// - errc::no_cuda.
/// - The system's error: no descriptor is left.
///
/// @par Cost
/// One event, one descriptor and one wait of the reactor. The operation completes some 80 us after the stream has
/// passed. After a long wait the delay is a 64th of the wait, at most 1 ms.
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
/// @brief Waits without the memory of the work; otherwise as the overload above.
template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
auto async_wait(asio::any_io_executor executor, cuda_stream_ref stream, Token&& token = Token())
{
    return async_wait(std::move(executor), stream, memory_span{}, std::forward<Token>(token));
}

}  // namespace gpurx
