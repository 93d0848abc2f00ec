// SPDX-License-Identifier: Apache-2.0
//
// Points in streams: recorded events, kept for the next use, because to create one takes longer than to record it. And
// the thread that sees them pass.
#pragma once

#include "driver.hpp"
#include "gpu_work.hpp"

namespace gpurx::detail {

struct stream_point {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    bool lost = false;             // could not be recorded: only the end of all work of the context is certain
    stream_point* next = nullptr;  // another stream's point, to be waited for as well; or in the pool

    // For the thread.
    void (*then)(void*) noexcept = nullptr;
    void* argument = nullptr;
    stream_point* behind = nullptr;  // recorded later on this stream
    stream_point* last = nullptr;    // of the stream; kept by the first
    stream_point* other = nullptr;   // the first of the next stream
};

namespace cuda {

// Whether this point has passed; of the others in its list nothing is said. So it has when its context is in error for
// good: nothing runs there any more. What else the driver reports says nothing about the stream, and makes the point a
// lost one, which has not passed.
[[nodiscard]] bool passed(stream_point& point) noexcept;
// Nothing runs in a context that answers so, now or later.
[[nodiscard]] bool is_over(CUresult status) noexcept;
// One that nobody uses, not recorded yet; lost if there can be no event. Null without memory.
[[nodiscard]] stream_point* make_point(CUcontext context) noexcept;
// Waits for all work of the point's context. False: it could not be waited for now.
[[nodiscard]] bool wait_for_context(stream_point const& point) noexcept;
// Back to the pool.
void discard(stream_point* point) noexcept;

// For the end of the process, once ending() says so: whoever waits is told, and no call of the driver is under way
// after it returns.
void stop_watching_streams() noexcept;

}  // namespace cuda

}  // namespace gpurx::detail
