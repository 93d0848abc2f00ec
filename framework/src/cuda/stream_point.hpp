// SPDX-License-Identifier: Apache-2.0
//
// Points in streams: recorded events, which the library reuses, because creation takes longer than recording. Also the
// thread that detects that they have passed.
#pragma once

#include <atomic>

#include "driver.hpp"
#include "gpu_work.hpp"
#include "poll_schedule.hpp"

namespace gpurx::detail {

struct stream_point {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    bool kept = false;                        // the context lasts (is_kept)
    stream_point* stands_for = nullptr;       // passes when that point passes; holds that point
    std::atomic<bool> lost{false};            // could not be recorded
    std::atomic<bool> done{false};            // has passed; holders need not ask
    std::atomic<CUresult> end{CUDA_SUCCESS};  // result with which it passed
    std::atomic<unsigned> holders{1};         // one may list it, record it again and wait for it; others ask
    stream_point* next = nullptr;             // point of another stream to wait for too; or in the pool

    // Members of the thread.
    void (*then)(void*, error_code) noexcept = nullptr;
    void* argument = nullptr;
    stream_point* behind = nullptr;       // recorded later on this stream
    stream_point* last = nullptr;         // last point of the stream; set in the first
    stream_point* last_urgent = nullptr;  // last of them not for a pool's pages; set in the first
    stream_point* other = nullptr;        // the first of the next stream
    waiting_for what = waiting_for::pages;
    cuda::poll_clock::time_point since{};    // began to wait as the first of its stream
    cuda::poll_clock::time_point poll_at{};  // next poll
};

namespace cuda {

class context_scope;

// Returns whether this point has passed; ignores the others in its list. A point has also passed if its context is in a
// permanent error state: no work runs there any more, and `end` has the error. Other errors of the driver do not
// concern the stream. A lost point has passed if its stream is idle and is not being captured. The function enqueues
// nothing and does not wait.
[[nodiscard]] bool passed(stream_point& point) noexcept;
[[nodiscard]] bool passed(stream_point& point, context_scope const& within) noexcept;
// Returns an unused point that is not recorded yet. The point is lost if no event can be made. The context is current.
// Returns null if memory runs out, so call it before the work of the point is enqueued.
[[nodiscard]] stream_point* make_point(CUcontext context) noexcept;
// Adds a holder.
[[nodiscard]] stream_point* hold(stream_point& point) noexcept;
// Returns a point that passes with `other`, for a caller that must be notified but only holds `other`, while another
// holder lists it. Null if memory runs out.
[[nodiscard]] stream_point* stand_in_for(stream_point& other) noexcept;
// Waits, without a limit, until the points of a list have passed, and takes them.
void wait_for(stream_point* point) noexcept;
// Returns whether commands on the stream go into a graph. Its context is current. Also returns true if the driver
// cannot report it.
[[nodiscard]] bool is_captured(CUstream stream) noexcept;
// Records the point behind the work enqueued on `stream`, which belongs to the point's context. If the stream is being
// captured, the point is lost.
void record(stream_point& point, CUstream stream, bool captured = false) noexcept;
// Orders later work on `later`, whose context is current within `within`, after earlier work on `earlier`, which
// belongs to this context.
[[nodiscard]] CUresult wait_behind(CUstream later, context_scope const& within, CUstream earlier,
                                   CUcontext of_earlier) noexcept;
// Adds a point to a list. It replaces an earlier point of its stream.
void add(stream_point*& list, stream_point* point) noexcept;
// Removes a holder. Without holders the point returns to the pool.
void discard(stream_point* point) noexcept;
// The same for a holder that has seen the point pass. Other holders need not ask any more.
void settle(stream_point* point) noexcept;

// Starts the thread that watches streams, if it is not running. Call it when the first GPU is opened: later, when pages
// wait, the system might not be able to start a thread. Throws system_error and std::bad_alloc.
void watch_streams();
// Returns whether this is the thread that watches streams.
[[nodiscard]] bool is_watching_streams() noexcept;
// Call it at the end of the process, after ending() returns true. It completes all waits. After it returns, no call of
// the driver is running.
void stop_watching_streams() noexcept;

}  // namespace cuda

}  // namespace gpurx::detail
