// SPDX-License-Identifier: Apache-2.0
//
// Points in streams: recorded events, kept for the next use, because to create one takes longer than to record it. And
// the thread that sees them pass.
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
    stream_point* stands_for = nullptr;       // has passed when that has, which it is a holder of
    std::atomic<bool> lost{false};            // could not be recorded
    std::atomic<bool> done{false};            // has passed, and whoever holds it need not ask
    std::atomic<CUresult> end{CUDA_SUCCESS};  // what it has passed with
    std::atomic<unsigned> holders{1};         // one may have it in a list, record it again and wait for it; others ask
    stream_point* next = nullptr;             // another stream's point, to be waited for as well; or in the pool

    // For the thread.
    void (*then)(void*, error_code) noexcept = nullptr;
    void* argument = nullptr;
    stream_point* behind = nullptr;          // recorded later on this stream
    stream_point* last = nullptr;            // of the stream; kept by the first
    stream_point* other = nullptr;           // the first of the next stream
    bool awaited = false;                    // somebody waits for the stream, and not for pages
    cuda::poll_clock::time_point since{};    // is waited for as the first of its stream
    cuda::poll_clock::time_point poll_at{};  // is asked for next
};

namespace cuda {

class context_scope;

// Whether this point has passed; of the others in its list nothing is said. So it has when its context is in error for
// good: nothing runs there any more, and `end` says why. What else the driver reports says nothing about the stream.
// A lost point has when its stream has nothing to do and is not being captured. Nothing is enqueued, and nothing waited
// for.
[[nodiscard]] bool passed(stream_point& point) noexcept;
[[nodiscard]] bool passed(stream_point& point, context_scope const& within) noexcept;
// One that nobody uses, not recorded yet; lost if there can be no event. Its context is current. Null without memory:
// so it is made before anything is enqueued that it is to be behind.
[[nodiscard]] stream_point* make_point(CUcontext context) noexcept;
// One holder more.
[[nodiscard]] stream_point* hold(stream_point& point) noexcept;
// For who is to be told that a point has passed which another one has in its list, and only holds it. Null without
// memory.
[[nodiscard]] stream_point* stand_in_for(stream_point& other) noexcept;
// Waits until the points of a list have passed, as long as that takes, and takes them.
void wait_for(stream_point* point) noexcept;
// Whether what it is given goes into a graph, and not into the stream; its context is current. True, too, if the driver
// cannot say.
[[nodiscard]] bool is_captured(CUstream stream) noexcept;
// Behind what was enqueued on `stream`, which is of the point's context; lost if it is being captured.
void record(stream_point& point, CUstream stream, bool captured = false) noexcept;
// Work enqueued on `later`, whose context is current within `within`, from now on runs after what was enqueued on
// `earlier`, of this context, so far.
[[nodiscard]] CUresult wait_behind(CUstream later, context_scope const& within, CUstream earlier,
                                   CUcontext of_earlier) noexcept;
// Adds a point to a list, in the place of an earlier one of its stream.
void add(stream_point*& list, stream_point* point) noexcept;
// One holder less; without any it goes back to the pool.
void discard(stream_point* point) noexcept;
// The same for who has seen it pass: the others need not ask any more.
void settle(stream_point* point) noexcept;

// Starts the thread that sees streams pass, if it is not there: when the first GPU is opened, as there may be none left
// to start when pages wait. Throws system_error and std::bad_alloc.
void watch_streams();
// Whether this is the thread that sees streams pass.
[[nodiscard]] bool is_watching_streams() noexcept;
// For the end of the process, once ending() says so: whoever waits is told, and no call of the driver is under way
// after it returns.
void stop_watching_streams() noexcept;

}  // namespace cuda

}  // namespace gpurx::detail
