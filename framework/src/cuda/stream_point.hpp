// SPDX-License-Identifier: Apache-2.0
//
// Points in streams: recorded events, kept for the next use, because to create one takes longer than to record it. And
// the thread that sees them pass.
#pragma once

#include <atomic>

#include "driver.hpp"
#include "gpu_work.hpp"

namespace gpurx::detail {

struct stream_point {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    std::atomic<bool> lost{false};     // could not be recorded: only the end of all work of the context is certain
    std::atomic<bool> done{false};     // has passed, and whoever holds it need not ask
    std::atomic<unsigned> holders{1};  // one may have it in a list, record it again and wait for it; others ask
    stream_point* next = nullptr;      // another stream's point, to be waited for as well; or in the pool

    // For the thread.
    void (*then)(void*) noexcept = nullptr;
    void* argument = nullptr;
    stream_point* behind = nullptr;  // recorded later on this stream
    stream_point* last = nullptr;    // of the stream; kept by the first
    stream_point* other = nullptr;   // the first of the next stream
};

namespace cuda {

class context_scope;

// Whether this point has passed; of the others in its list nothing is said. So it has when its context is in error for
// good: nothing runs there any more. What else the driver reports says nothing about the stream, and makes the point a
// lost one, which has not passed.
[[nodiscard]] bool passed(stream_point& point) noexcept;
[[nodiscard]] bool passed(stream_point& point, context_scope const& within) noexcept;
// One that nobody uses, not recorded yet; lost if there can be no event. Null without memory.
[[nodiscard]] stream_point* make_point(CUcontext context) noexcept;
// Waits for all work of the point's context. False: it could not be waited for now.
[[nodiscard]] bool wait_for_context(stream_point const& point) noexcept;
// Behind what was enqueued on `stream`, whose context is current within `within`; a lost one if it is being captured.
// Null: there was no memory for it, and the stream has been waited for.
[[nodiscard]] stream_point* record_point(CUstream stream, context_scope const& within, bool captured = false) noexcept;
// The same for a list; asks whether it is being captured.
void mark(stream_point*& list, CUstream stream, context_scope const& within) noexcept;
// Adds a point to a list, in the place of an earlier one of its stream.
void add(stream_point*& list, stream_point* point) noexcept;
// One holder less; without any it goes back to the pool.
void discard(stream_point* point) noexcept;
// The same for who has seen it pass: the others need not ask any more.
void settle(stream_point* point) noexcept;

// For the end of the process, once ending() says so: whoever waits is told, and no call of the driver is under way
// after it returns.
void stop_watching_streams() noexcept;

}  // namespace cuda

}  // namespace gpurx::detail
