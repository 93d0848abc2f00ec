// SPDX-License-Identifier: Apache-2.0
#include "stream_point.hpp"

#include <sys/prctl.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "gpu.hpp"
#include "thread.hpp"

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
                point->done = false;
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

// A stream that is being captured records into the graph, and not into the stream.
bool is_captured(CUstream stream) noexcept
{
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    return calls().cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void record(stream_point& point, bool captured) noexcept
{
    point.lost = captured || point.event == nullptr || calls().cuEventRecord(point.event, point.stream) != CUDA_SUCCESS;
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

}  // namespace

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

bool passed(stream_point& point, context_scope const& within) noexcept
{
    if (ending() || point.done.load(std::memory_order_acquire))
        return true;
    if (point.lost)
        return false;
    context_scope const scope{within, point.context};
    auto const status = scope.status() != CUDA_SUCCESS ? scope.status() : calls().cuEventQuery(point.event);
    if (status != CUDA_SUCCESS && status != CUDA_ERROR_NOT_READY && !is_over(status))
        point.lost = true;
    return status == CUDA_SUCCESS || is_over(status);
}

bool passed(stream_point& point) noexcept
{
    return passed(point, context_scope{calls(), point.context});
}

bool wait_for_context(stream_point const& point) noexcept
{
    context_scope const scope{calls(), point.context};
    auto const status = scope.status() != CUDA_SUCCESS ? scope.status() : calls().cuCtxSynchronize();
    return status == CUDA_SUCCESS || is_over(status);
}

stream_point* record_point(CUstream stream, context_scope const& within, bool captured) noexcept
{
    auto* const point = make_point(within.context());
    if (point == nullptr) {
        static_cast<void>(calls().cuStreamSynchronize(stream));
        return nullptr;
    }
    point->stream = stream;
    record(*point, captured);
    return point;
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

void mark(stream_point*& list, CUstream stream, context_scope const& within) noexcept
{
    auto const captured = is_captured(stream);
    auto* const known = *find(list, within.context(), stream);
    if (known != nullptr && known->holders == 1)
        record(*known, captured);
    else if (auto* const fresh = record_point(stream, within, captured))
        add(list, fresh);
}

void discard(stream_point* point) noexcept
{
    if (point->holders.fetch_sub(1, std::memory_order_acq_rel) > 1)
        return;
    if (point->event == nullptr || point->lost || !is_kept(point->context)) {
        context_scope const scope{calls(), point->context};
        if (point->event != nullptr && scope.status() == CUDA_SUCCESS)
            static_cast<void>(calls().cuEventDestroy(point->event));
        delete point;
        return;
    }
    point_pool::instance().put(point);
}

void settle(stream_point* point) noexcept
{
    point->done.store(true, std::memory_order_release);
    discard(point);
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
    mark(point, on.stream.get(), scope);
}

bool has_passed(stream_point*& point) noexcept
{
    while (point != nullptr && cuda::passed(*point))
        cuda::settle(std::exchange(point, point->next));
    return point == nullptr;
}

// ---- the thread that sees streams pass ----
//
// It asks the driver for the oldest point of each stream every few dozen microseconds, and sleeps when nobody waits: a
// host function in the stream would stall it, and would never be called once the GPU is in error; to block on one event
// would let a slow stream hold up the others.

namespace cuda {

namespace {

// Half of it is what a page waits for on average after its stream has passed, and one question to the driver costs
// about a microsecond.
constexpr std::chrono::microseconds period{40};
// Looks for nothing before it sleeps, about two milliseconds: to wake it takes longer than everything else that a
// release does, and one release is seldom the last.
constexpr int linger = 50;

class stream_watch {
  public:
    static stream_watch& instance()
    {
        // Never destroyed: points come in from static destructors too.
        static auto* const watch = new stream_watch;
        return *watch;
    }

    // False: nobody will look at them.
    [[nodiscard]] bool add(stream_point* points) noexcept
    {
        std::unique_lock lock{mutex_};
        if (stopping_ || !start())
            return false;
        points->behind = nullptr;
        (newest_ == nullptr ? oldest_ : newest_->behind) = points;
        newest_ = points;
        auto const sleeps = std::exchange(asleep_, false);
        lock.unlock();
        if (sleeps)
            wake_.notify_one();
        return true;
    }

    void stop() noexcept
    {
        {
            std::scoped_lock const lock{mutex_};
            stopping_ = true;
            wake_.notify_one();
        }
        if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id())
            thread_.join();
    }

  private:
    // With the mutex. False: the system has no thread for it.
    [[nodiscard]] bool start() noexcept
    {
        if (thread_.joinable())
            return true;
        try {
            thread_ = start_thread("gpurx-streams", [this](std::stop_token const&) { run(); });
        } catch (system_error const&) {
            return false;
        } catch (std::bad_alloc const&) {
            return false;
        }
        return true;
    }

    void run() noexcept
    {
        ::prctl(PR_SET_TIMERSLACK, 1);  // or each sleep takes 50 us longer than asked for
        while (take_in())
            if (!look())
                std::this_thread::sleep_for(period);
        give_up();
    }

    // Sorts what has come in by stream; sleeps while there is nothing. False: told to stop.
    [[nodiscard]] bool take_in() noexcept
    {
        std::unique_lock lock{mutex_};
        idle_ = streams_ == nullptr && oldest_ == nullptr ? idle_ + 1 : 0;
        while (!stopping_ && streams_ == nullptr && oldest_ == nullptr && idle_ > linger) {
            asleep_ = true;
            wake_.wait(lock);
        }
        asleep_ = false;
        auto* point = std::exchange(oldest_, nullptr);
        newest_ = nullptr;
        auto const goes_on = !stopping_;
        lock.unlock();
        while (point != nullptr)
            append(std::exchange(point, point->behind));
        return goes_on;
    }

    void append(stream_point* point) noexcept
    {
        point->behind = nullptr;
        for (auto* first = streams_; first != nullptr; first = first->other) {
            if (first->stream == point->stream && first->context == point->context) {
                first->last->behind = point;
                first->last = point;
                return;
            }
        }
        point->last = point;
        point->other = std::exchange(streams_, point);
    }

    // Asks for the oldest point of each stream. True if any has passed. Whoever waits is told in the order of the
    // stream.
    [[nodiscard]] bool look() noexcept
    {
        stream_point* done = nullptr;
        auto** end = &done;
        for (auto** link = &streams_; *link != nullptr;) {
            auto* const first = *link;
            if (!(passed(*first) || (first->lost && wait_for_context(*first)))) {
                link = &first->other;
                continue;
            }
            remove_first(link);
            first->behind = nullptr;
            *end = first;
            end = &first->behind;
        }
        auto const any = done != nullptr;
        while (done != nullptr)
            finish(std::exchange(done, done->behind));
        return any;
    }

    static void remove_first(stream_point** link) noexcept
    {
        auto* const first = *link;
        if (auto* const second = first->behind) {
            second->last = first->last;
            second->other = first->other;
            *link = second;
        } else {
            *link = first->other;
        }
    }

    // A point that has passed: the next of its list is waited for, or whoever waits is told.
    void finish(stream_point* point) noexcept
    {
        auto* const next = point->next;
        auto* const then = point->then;
        auto* const argument = point->argument;
        settle(point);
        if (next != nullptr)
            append(next);
        else
            then(argument);
    }

    // The process ends: nobody waits any more.
    void give_up() noexcept
    {
        while (streams_ != nullptr) {
            auto* const first = streams_;
            remove_first(&streams_);
            finish(first);
        }
    }

    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    stream_point* oldest_ = nullptr;  // of those that have come in
    stream_point* newest_ = nullptr;
    bool asleep_ = false;
    bool stopping_ = false;

    std::jthread thread_;
    stream_point* streams_ = nullptr;  // the thread's own, as is:
    int idle_ = 0;
};

}  // namespace

void stop_watching_streams() noexcept
{
    stream_watch::instance().stop();
}

}  // namespace cuda

void when_passed(stream_point* point, void (*then)(void*) noexcept, void* argument) noexcept
{
    using namespace cuda;
    auto* last = point;
    while (last->next != nullptr)
        last = last->next;
    last->then = then;
    last->argument = argument;
    if (stream_watch::instance().add(point))
        return;
    while (point != nullptr) {
        static_cast<void>(wait_for_context(*point));
        settle(std::exchange(point, point->next));
    }
    then(argument);
}

}  // namespace gpurx::detail
