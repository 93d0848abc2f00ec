// SPDX-License-Identifier: Apache-2.0
//
// Streams for programs that include no CUDA header: one of one's own, order between two, and to wait for one.
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

// A CUDA stream that it owns; empty: none. Move-only.
//
// Lifetime: as cuda_stream_ref says. Destroying it waits for nothing: what was enqueued is done all the same. It makes
// no call of the driver once the process ends. Thread safety: distinct objects are independent; work may be enqueued
// from several threads.
class cuda_stream {
  public:
    cuda_stream() noexcept = default;
    // In the primary context of the GPU with this CUDA ordinal, which PyTorch and the CUDA runtime work in too. It does
    // not wait for the default stream, nor does that wait for it (CU_STREAM_NON_BLOCKING).
    // Errors: errc::no_cuda, and what the driver reports.
    [[nodiscard]] static cuda_stream on(int ordinal);
    [[nodiscard]] static cuda_stream on(int ordinal, error_code& code, diagnostics& why);

    cuda_stream(cuda_stream&& other) noexcept : handle_{std::exchange(other.handle_, nullptr)} {}
    cuda_stream& operator=(cuda_stream&& other) noexcept
    {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~cuda_stream();

    [[nodiscard]] CUstream_st* get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    operator cuda_stream_ref() const noexcept { return cuda_stream_ref{handle_}; }

  private:
    explicit cuda_stream(CUstream_st* handle) noexcept : handle_{handle} {}

    CUstream_st* handle_ = nullptr;
};

// What is enqueued on `later` from now on runs after what was enqueued on `earlier` so far. Nothing waits on the host.
// A default stream (cuda_stream_ref{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD) is that of the other stream's GPU: of
// the caller's current context if it is one of that GPU, else of its primary one. The same stream twice, or none twice:
// there is nothing to do.
//
// Errors: errc::unusable_stream if one is being captured; errc::no_cuda; what the driver reports, in cuda_category():
// also CUDA_ERROR_INVALID_CONTEXT for two default streams that differ, without a current context. Cost: two calls of
// the driver, and some to look at the streams. Thread safety: may be called at the same time.
void order_after(cuda_stream_ref later, cuda_stream_ref earlier);
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

// Completes when all that was enqueued on `stream` before this operation began has finished. `memory` is what the work
// is done on, and says whose default stream is meant where `stream` is one: for host memory without a stream there is
// nothing to wait for. Without `memory` an empty stream is none, too. Needs no thread of the program: the library has
// one that looks at streams (docs/gpu.md).
//
// Signature: void(error_code). The rules that receiver.hpp has for operations hold: the handler runs on its associated
//   executor, by default `executor`, never inside the initiating function. `executor` is one of an io_context, or of
//   another context that asio can make descriptors in. The stream must outlive the operation, unless it is a
//   cuda_stream.
// Per-operation cancellation: terminal, partial, total; the work goes on.
// Errors: what the GPU reports if it is in error for good: what was enqueued is not done
// then. errc::unusable_stream for
//   one that is being captured, and for CU_STREAM_PER_THREAD, as a deferred operation may begin in any thread;
//   errc::no_cuda; what the system reports if it has no descriptor left.
// Cost: an event, a descriptor, and a wait of the reactor; some 80 us after the stream has passed, or a 64th of
// the time that it took, at most 1 ms.
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
template <asio::completion_token_for<void(error_code)> Token = use_awaitable_t>
auto async_wait(asio::any_io_executor executor, cuda_stream_ref stream, Token&& token = Token())
{
    return async_wait(std::move(executor), stream, memory_span{}, std::forward<Token>(token));
}

}  // namespace gpurx
