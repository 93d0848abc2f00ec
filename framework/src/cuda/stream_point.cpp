// SPDX-License-Identifier: Apache-2.0
#include "stream_point.hpp"

#include <mutex>
#include <new>
#include <utility>

#include "gpu.hpp"
#include "stream_watch.hpp"

namespace gpurx::detail {

namespace cuda {

namespace {

// Points that nobody uses, of all contexts: most processes have one.
class point_pool {
  public:
    static point_pool& instance()
    {
        static auto* const pool = new point_pool;
        return *pool;
    }

    [[nodiscard]] stream_point* take(CUcontext context) noexcept
    {
        std::scoped_lock const lock{mutex_};
        for (auto** link = &free_; *link != nullptr; link = &(*link)->next) {
            auto* const point = *link;
            if (point->context == context) {
                *link = point->next;
                point->next = nullptr;
                return point;
            }
        }
        return nullptr;
    }
    void put(stream_point* point) noexcept
    {
        std::scoped_lock const lock{mutex_};
        point->next = free_;
        free_ = point;
    }

  private:
    std::mutex mutex_;
    stream_point* free_ = nullptr;
};

// The driver, which must be there if there is a point.
driver const& calls() noexcept
{
    static auto const& driver = require_driver();
    return driver;
}

bool is_there() noexcept
{
    static auto const found = [] {
        error_code code;
        diagnostics why;
        return find_driver(code, why) != nullptr;
    }();
    return found;
}

// A stream that is being captured records into the graph, and not into the stream.
bool is_captured(CUstream stream) noexcept
{
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    return calls().cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void record(stream_point& point) noexcept
{
    point.lost = point.event == nullptr || is_captured(point.stream) ||
                 calls().cuEventRecord(point.event, point.stream) != CUDA_SUCCESS;
}

// For a stream whose context cannot be told: the GPU's primary one, which most work is in.
CUcontext context_or_primary(gpu_stream const& on) noexcept
{
    CUcontext context = nullptr;
    if (context_of(calls(), on, context) == CUDA_SUCCESS)
        return context;
    try {
        return on.ordinal == no_gpu ? nullptr : gpu::open(on.ordinal).context();
    } catch (std::exception const&) {
        return nullptr;
    }
}

// The point of this stream, if its handle means the same in every thread.
stream_point* find(stream_point* list, CUcontext context, CUstream stream) noexcept
{
    if (stream == CU_STREAM_PER_THREAD)
        return nullptr;
    while (list != nullptr && (list->context != context || list->stream != stream))
        list = list->next;
    return list;
}

}  // namespace

bool is_over(CUresult status) noexcept
{
    switch (status) {
        case CUDA_ERROR_DEINITIALIZED:
        case CUDA_ERROR_INVALID_CONTEXT:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        case CUDA_ERROR_INVALID_HANDLE:  // the event has gone with its context
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_NVLINK_UNCORRECTABLE:
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
            return true;
        default:
            return false;
    }
}

stream_point* make_point(CUcontext context) noexcept
{
    if (auto* const known = point_pool::instance().take(context))
        return known;
    auto* const point = new (std::nothrow) stream_point;
    if (point == nullptr)
        return nullptr;
    point->context = context;
    point->lost = calls().cuEventCreate(&point->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS;
    return point;
}

bool passed(stream_point& point) noexcept
{
    if (ending())
        return true;
    if (point.lost)
        return false;
    context_scope const scope{calls(), point.context};
    auto const status = scope.status() != CUDA_SUCCESS ? scope.status() : calls().cuEventQuery(point.event);
    point.lost = status != CUDA_SUCCESS && status != CUDA_ERROR_NOT_READY && !is_over(status);
    return status == CUDA_SUCCESS || is_over(status);
}

bool wait_for_context(stream_point const& point) noexcept
{
    context_scope const scope{calls(), point.context};
    auto const status = scope.status() != CUDA_SUCCESS ? scope.status() : calls().cuCtxSynchronize();
    return status == CUDA_SUCCESS || is_over(status);
}

void discard(stream_point* point) noexcept
{
    if (point->event == nullptr || point->lost || !is_kept(point->context)) {
        context_scope const scope{calls(), point->context};
        if (point->event != nullptr && scope.status() == CUDA_SUCCESS)
            static_cast<void>(calls().cuEventDestroy(point->event));
        delete point;
        return;
    }
    point_pool::instance().put(point);
}

}  // namespace cuda

void mark(stream_point*& point, gpu_stream on) noexcept
{
    using namespace cuda;
    if (ending() || !is_there())
        return;
    auto* const context = context_or_primary(on);
    if (context == nullptr)
        return;  // no GPU is meant, and the stream is none that CUDA knows
    context_scope const scope{calls(), context};
    if (auto* const known = find(point, context, on.stream.get()))
        return record(*known);
    auto* const fresh = make_point(context);
    if (fresh == nullptr) {
        static_cast<void>(calls().cuStreamSynchronize(on.stream.get()));
        return;
    }
    fresh->stream = on.stream.get();
    record(*fresh);
    fresh->next = point;
    point = fresh;
}

bool has_passed(stream_point*& point) noexcept
{
    while (point != nullptr && cuda::passed(*point))
        cuda::discard(std::exchange(point, point->next));
    return point == nullptr;
}

void when_passed(stream_point* point, void (*then)(void*) noexcept, void* argument) noexcept
{
    auto* last = point;
    while (last->next != nullptr)
        last = last->next;
    last->then = then;
    last->argument = argument;
    cuda::watch(point);
}

}  // namespace gpurx::detail
