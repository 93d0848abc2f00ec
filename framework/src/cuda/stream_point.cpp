// SPDX-License-Identifier: Apache-2.0
#include "stream_point.hpp"

#include <mutex>
#include <new>
#include <utility>

#include "gpu.hpp"

namespace gpurx::detail {

namespace cuda {

namespace {

// Points that nobody uses, of all contexts: most processes have one.
class point_pool {
  public:
    [[nodiscard]] stream_point* take(CUcontext context) noexcept
    {
        std::scoped_lock const lock{mutex_};
        for (auto** link = &free_; *link != nullptr; link = &(*link)->next) {
            auto* const point = *link;
            if (point->context == context) {
                *link = point->next;
                point->next = nullptr;
                point->done = false;
                point->end = CUDA_SUCCESS;
                point->holders = 1;
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

stream_point* set_up(stream_point* fresh, CUcontext context) noexcept
{
    fresh->context = context;
    fresh->kept = is_kept(context);
    fresh->lost = calls().cuEventCreate(&fresh->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS;
    return fresh;
}

// Of a lost point: one of a stream that was being captured, or for which the driver had no event. It is not recorded
// later: the stream may be full, and who asks asks for others too, perhaps under a lock of theirs. Nor is the context
// waited for: that would end captures of all its streams; so would the question below, in a capture.
CUresult ask_without_event(stream_point const& point) noexcept
{
    auto capture = CU_STREAM_CAPTURE_STATUS_NONE;
    auto const status = calls().cuStreamIsCapturing(point.stream, &capture);
    if (status == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return CUDA_ERROR_NOT_READY;
    return status != CUDA_SUCCESS ? status : calls().cuStreamQuery(point.stream);
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

// Where a list has the point of this stream, if its handle means the same in every thread; else where the list ends.
stream_point** find(stream_point*& list, CUcontext context, CUstream stream) noexcept
{
    auto** link = &list;
    while (*link != nullptr &&
           ((*link)->context != context || (*link)->stream != stream || stream == CU_STREAM_PER_THREAD))
        link = &(*link)->next;
    return link;
}

// Behind what was enqueued on `stream`, whose context is current within `within`.
void mark(stream_point*& list, CUstream stream, context_scope const& within, spare_point& spare) noexcept
{
    auto const captured = is_captured(stream);
    auto* point = *find(list, within.context(), stream);
    if (point != nullptr && point->holders == 1)
        return record(*point, stream, captured);
    point = immortal<point_pool>().take(within.context());
    if (point == nullptr)
        point = set_up(spare.take(), within.context());
    record(*point, stream, captured);
    add(list, point);
}

}  // namespace

stream_point* make_point(CUcontext context) noexcept
{
    if (auto* const known = immortal<point_pool>().take(context))
        return known;
    auto* const fresh = new (std::nothrow) stream_point;
    return fresh == nullptr ? nullptr : set_up(fresh, context);
}

stream_point* hold(stream_point& point) noexcept
{
    point.holders.fetch_add(1, std::memory_order_relaxed);
    return &point;
}

stream_point* stand_in_for(stream_point& other) noexcept
{
    auto* const point = new (std::nothrow) stream_point;
    if (point == nullptr)
        return nullptr;
    point->context = other.context;
    point->stream = other.stream;
    point->stands_for = hold(other);
    return point;
}

bool passed(stream_point& point, context_scope const& within) noexcept
{
    if (ending() || point.done.load(std::memory_order_acquire))
        return true;
    if (point.stands_for != nullptr) {
        auto const over = passed(*point.stands_for, within);
        point.end = point.stands_for->end.load();
        return over;
    }
    context_scope const scope{within, point.context};
    auto status = scope.status();
    if (status == CUDA_SUCCESS)
        status = point.lost ? ask_without_event(point) : calls().cuEventQuery(point.event);
    if (is_over(status)) {
        point.end = status;
        note_failure(point.context, status);
    }
    return status == CUDA_SUCCESS || is_over(status);
}

bool passed(stream_point& point) noexcept
{
    return point.done.load(std::memory_order_acquire) || passed(point, context_scope{calls(), point.context});
}

bool is_captured(CUstream stream) noexcept
{
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    return calls().cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void record(stream_point& point, CUstream stream, bool captured) noexcept
{
    point.stream = stream;
    point.lost = captured || point.event == nullptr || calls().cuEventRecord(point.event, stream) != CUDA_SUCCESS;
}

CUresult wait_behind(CUstream later, context_scope const& within, CUstream earlier, CUcontext of_earlier) noexcept
{
    context_scope const scope{within, of_earlier};
    if (scope.status() != CUDA_SUCCESS)
        return scope.status();
    auto* const point = make_point(of_earlier);
    if (point == nullptr)
        return CUDA_ERROR_OUT_OF_MEMORY;
    auto status = point->event == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : calls().cuEventRecord(point->event, earlier);
    if (status == CUDA_SUCCESS) {
        context_scope const theirs{scope, within.context()};
        status = theirs.status() == CUDA_SUCCESS ? calls().cuStreamWaitEvent(later, point->event, CU_EVENT_WAIT_DEFAULT)
                                                 : theirs.status();
    }
    // The wait is for the event as it is recorded here, so it may be used again at once.
    point->lost = status != CUDA_SUCCESS;
    discard(point);
    return status;
}

void add(stream_point*& list, stream_point* point) noexcept
{
    auto** const link = find(list, point->context, point->stream);
    if (auto* const earlier = *link) {
        *link = earlier->next;
        discard(earlier);
    }
    point->next = std::exchange(list, point);
}

void discard(stream_point* point) noexcept
{
    if (point->holders.fetch_sub(1, std::memory_order_acq_rel) > 1)
        return;
    if (point->stands_for != nullptr) {
        discard(point->stands_for);
        delete point;
        return;
    }
    if (point->event == nullptr || point->lost || !point->kept) {
        context_scope const scope{calls(), point->context};
        if (point->event != nullptr && scope.status() == CUDA_SUCCESS)
            static_cast<void>(calls().cuEventDestroy(point->event));
        delete point;
        return;
    }
    immortal<point_pool>().put(point);
}

void settle(stream_point* point) noexcept
{
    point->done.store(true, std::memory_order_release);
    discard(point);
}

}  // namespace cuda

spare_point::~spare_point()
{
    delete memory_;
}

void spare_point::provide()
{
    if (memory_ == nullptr)
        memory_ = new stream_point;
}

void mark(stream_point*& point, gpu_stream on, spare_point& spare) noexcept
{
    using namespace cuda;
    if (ending() || !is_there())
        return;
    auto* const context = context_or_primary(on);
    if (context == nullptr)
        return;  // no GPU is meant, and the stream is none that CUDA knows
    context_scope const scope{calls(), context};
    mark(point, on.stream.get(), scope, spare);
}

bool has_passed(stream_point*& point) noexcept
{
    while (point != nullptr && cuda::passed(*point))
        cuda::settle(std::exchange(point, point->next));
    return point == nullptr;
}

}  // namespace gpurx::detail
