// SPDX-License-Identifier: Apache-2.0
//
// The fake CUDA driver: streams, each with a thread, and events.
#include <algorithm>

#include "fake_cuda_state.hpp"

namespace fake_cuda::inside {

namespace {

// Of a stream's commands that the GPU has not begun; about what a driver has room for.
constexpr std::size_t queue_length = 1000;

bool is_default_handle(CUstream handle)
{
    return handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

// A failed context's work is not done, so it waits for nothing; a held stream stands still all the same.
bool may_run(state const& s, stream const& on)
{
    if (on.queue.empty() || on.held || s.all_held)
        return false;
    auto const& next = on.queue.front();
    if (on.of->error != CUDA_SUCCESS)
        return true;
    return (next.wait == nullptr || next.wait->done) && (!next.ready || next.ready()) &&
           !(next.of_host && s.in_host_function);
}

// What the stream waits for may come without a notice, and is looked for.
void wait_for_work(state& s, guard& lock, stream const& on)
{
    constexpr auto look_again = std::chrono::microseconds{50};
    auto const goes_on = [&] { return on.dropped || may_run(s, on) || (on.destroyed && on.queue.empty()); };
    while (!goes_on()) {
        if (!on.queue.empty() && on.queue.front().ready)
            s.changed.wait_for(lock, look_again);
        else
            s.changed.wait(lock);
    }
}

void run_next(state& s, guard& lock, stream& on)
{
    auto next = std::move(on.queue.front());
    on.queue.pop_front();
    on.busy = true;
    if (next.run && on.of->error == CUDA_SUCCESS) {
        if (next.uses)
            on.in_use = next.uses();
        on.library_in_use = next.library;
        s.in_host_function = s.in_host_function || next.of_host;
        lock.unlock();
        auto const status = next.run(on);
        next.run = nullptr;
        lock.lock();
        if (next.of_host)
            s.in_host_function = false;
        if (status != CUDA_SUCCESS && on.of->error == CUDA_SUCCESS && !on.dropped)
            on.of->error = status;
    }
    on.in_use.clear();
    on.library_in_use = 0;
    on.busy = false;
    next.mark->done = true;
    s.changed.notify_all();
}

void work(std::shared_ptr<stream> const& on)
{
    auto& s = all();
    guard lock{s.mutex};
    for (;;) {
        wait_for_work(s, lock, *on);
        if (on->dropped || on->queue.empty())
            break;
        run_next(s, lock, *on);
    }
    for (auto const& left : on->queue)
        left.mark->done = true;  // others may wait for it
    on->queue.clear();
    on->finished = true;
    s.changed.notify_all();
}

std::shared_ptr<stream> make_stream(state& s, std::shared_ptr<context> const& of, unsigned flags, bool is_default)
{
    auto const made = std::make_shared<stream>();
    made->handle = s.new_handle();
    made->of = of;
    made->flags = flags;
    made->is_default = is_default;
    s.streams[made->handle] = made;
    made->thread = std::thread{[made] { work(made); }};
    return made;
}

}  // namespace

std::shared_ptr<stream> find_stream(state& s, CUstream handle, std::shared_ptr<context> const& current,
                                    std::string const& name)
{
    if (is_default_handle(handle)) {
        if (!current)
            return nullptr;
        if (current->default_stream == 0)
            current->default_stream = make_stream(s, current, 0, true)->handle;
        return s.streams.at(current->default_stream);
    }
    auto found = look_up(s, s.streams, handle, name);
    if (found && found->destroyed)
        abort_of_handle(s, name, found->handle);
    return found;
}

std::shared_ptr<record> enqueue(state& s, guard& lock, stream& on, operation op)
{
    op.mark = std::make_shared<record>();
    if (on.captured != capture::none) {  // a node of the graph, and nothing for the stream
        op.mark->done = true;
        on.nodes.push_back(op);
        return op.mark;
    }
    s.changed.wait(lock, [&] { return on.queue.size() < queue_length || on.dropped || on.of->error != CUDA_SUCCESS; });
    on.last = op.mark;
    on.queue.push_back(std::move(op));
    s.changed.notify_all();
    return on.last;
}

CUresult wait_for(state& s, guard& lock, stream& on, std::shared_ptr<record> const& place)
{
    auto const of = on.of;
    // Not while an operation runs: it may write to what the caller gives up next.
    s.changed.wait(lock, [&] {
        return place == nullptr || place->done || on.finished || (of->error != CUDA_SUCCESS && !on.busy);
    });
    return of->ended ? CUDA_ERROR_CONTEXT_IS_DESTROYED : of->error;
}

CUresult wait_for_all(state& s, guard& lock, std::shared_ptr<context> const& of)
{
    std::vector<std::shared_ptr<stream>> streams;
    for (auto const& [handle, stream] : s.streams)
        if (stream->of == of)
            streams.push_back(stream);
    for (auto const& stream : streams)
        if (auto const status = wait_for(s, lock, *stream, stream->last); status != CUDA_SUCCESS)
            return status;
    return CUDA_SUCCESS;
}

void wait_for_device(state& s, guard& lock, int device)
{
    std::vector<std::shared_ptr<context>> contexts;
    for (auto const& [handle, context] : s.contexts)
        if (context->device == device)
            contexts.push_back(context);
    for (auto const& context : contexts)
        static_cast<void>(wait_for_all(s, lock, context));
}

CUresult spoil_capture(state& s, std::string const& name, stream& of, CUresult error)
{
    if (of.captured == capture::active) {
        s.violate(name + " invalidates a capture");
        of.captured = capture::invalidated;
    }
    return error;
}

void take_time(stream& on, std::size_t bytes)
{
    auto& s = all();
    guard lock{s.mutex};
    if (s.delay.count() <= 0)
        return;
    auto const until = std::chrono::steady_clock::now() +
                       std::chrono::duration_cast<std::chrono::nanoseconds>(s.delay * static_cast<double>(bytes));
    s.changed.wait_until(lock, until, [&] { return on.dropped || on.of->error != CUDA_SUCCESS; });
}

void end_streams(state& s, guard& lock, std::vector<std::shared_ptr<stream>> const& ending)
{
    std::vector<std::thread> threads;
    for (auto const& stream : ending) {
        stream->dropped = true;
        threads.push_back(std::move(stream->thread));
        s.past_handles.insert(stream->handle);
        s.streams.erase(stream->handle);
    }
    s.changed.notify_all();
    lock.unlock();
    for (auto& thread : threads)
        if (thread.joinable())
            thread.join();
    lock.lock();
}

void reap(state& s)
{
    for (auto at = s.streams.begin(); at != s.streams.end();) {
        auto const here = at++;
        if (!here->second->destroyed || !here->second->finished)
            continue;
        here->second->thread.join();  // it needs the lock no more
        s.given_up.insert(here->first);
        s.streams.erase(here);
    }
}

}  // namespace fake_cuda::inside

using namespace fake_cuda::inside;
using context_pointer = std::shared_ptr<context>;
using stream_pointer = std::shared_ptr<stream>;

namespace {

// `answer(context)` with the stream's context; only the default streams need a current one for that.
template <class Answer>
CUresult ask_stream(char const* function, CUstream handle, Answer answer)
{
    return call(function, [&](state& s, guard&, std::string const& name) {
        auto status = CUDA_SUCCESS;
        auto const current = is_default_handle(handle) ? current_context(s, name, status) : nullptr;
        if (status != CUDA_SUCCESS)
            return status;
        auto const found = find_stream(s, handle, current, name);
        if (!found)
            return CUDA_ERROR_INVALID_HANDLE;
        answer(*found->of);
        return found->of->error;
    });
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuStreamCreate(CUstream* into, unsigned flags)
{
    auto const body = [&](state& s, guard&, std::string const&, context_pointer const& current) {
        if (into == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        reap(s);
        *into = handle_of<CUstream>(make_stream(s, current, flags, false)->handle);
        return CUDA_SUCCESS;
    };
    return call_in_context(__func__, body);
}

CUresult CUDAAPI cuStreamDestroy(CUstream handle)
{
    auto const body = [](state& s, guard&, std::string const&, context_pointer const&, stream_pointer const& found) {
        if (found->is_default)
            return CUDA_ERROR_INVALID_HANDLE;
        auto const error = found->of->error;
        found->destroyed = true;
        s.changed.notify_all();
        reap(s);
        return error;
    };
    return call_on_stream(__func__, handle, body, true);
}

CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* into)
{
    return ask_stream(__func__, handle, [&](context const& of) { *into = handle_of<CUcontext>(of.handle); });
}

CUresult CUDAAPI cuStreamGetDevice(CUstream handle, CUdevice* into)
{
    return ask_stream(__func__, handle, [&](context const& of) { *into = of.device; });
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status)
{
    return call(__func__, [&](state& s, guard&, std::string const& name) {
        auto no_context = CUDA_SUCCESS;
        auto const current = current_context(s, name, no_context);
        if (!current)
            return no_context;
        auto const found = find_stream(s, handle, current, name);
        if (!found)
            return CUDA_ERROR_INVALID_HANDLE;
        *status = found->captured == capture::none     ? CU_STREAM_CAPTURE_STATUS_NONE
                  : found->captured == capture::active ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                       : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        return CUDA_SUCCESS;  // whatever has become of the context: nobody asked for that
    });
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode)
{
    return call(__func__, [&](state&, guard&, std::string const&) {
        std::swap(*mode, capture_mode());
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuStreamQuery(CUstream handle)
{
    auto const body = [](state& s, guard&, std::string const& name, context_pointer const&,
                         stream_pointer const& found) {
        if (found->captured != capture::none)
            return spoil_capture(s, name, *found, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        return found->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    };
    return call_on_stream(__func__, handle, body);
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle)
{
    auto const body = [](state& s, guard& lock, std::string const& name, context_pointer const&,
                         stream_pointer const& found) {
        if (found->captured != capture::none)
            return spoil_capture(s, name, *found, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        return wait_for(s, lock, *found, found->last);
    };
    return call_on_stream(__func__, handle, body);
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags)
{
    auto const body = [&](state& s, guard& lock, std::string const& name, context_pointer const&,
                          stream_pointer const& found) {
        auto const event = look_up(s, s.events, event_handle, name);
        if (!event)
            return CUDA_ERROR_INVALID_HANDLE;
        if (flags != CU_EVENT_WAIT_DEFAULT)
            return CUDA_ERROR_INVALID_VALUE;
        if (found->captured != capture::none)
            return event->captured_in == found ? CUDA_SUCCESS
                                               : spoil_capture(s, name, *found, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        if (event->captured_in && event->captured_in->captured != capture::none) {
            s.violate(name + " takes a stream into a capture, which is not modelled");
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        if (event->last && !event->last->done) {
            operation op;
            op.wait = event->last;
            enqueue(s, lock, *found, std::move(op));
        }
        return CUDA_SUCCESS;
    };
    return call_on_stream(__func__, handle, body);
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data)
{
    auto const body = [&](state& s, guard& lock, std::string const&, context_pointer const&,
                          stream_pointer const& found) {
        if (function == nullptr)
            return CUDA_ERROR_INVALID_VALUE;
        operation op;
        op.of_host = true;
        op.run = [function, data](stream&) {
            in_host_function() = true;
            function(data);
            in_host_function() = false;
            return CUDA_SUCCESS;
        };
        enqueue(s, lock, *found, std::move(op));
        return CUDA_SUCCESS;
    };
    return call_on_stream(__func__, handle, body);
}

CUresult CUDAAPI cuEventCreate(CUevent* into, unsigned flags)
{
    auto const body = [&](state& s, guard&, std::string const&, context_pointer const& current) {
        constexpr unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
        if (into == nullptr || (flags & ~known) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        auto const handle = s.new_handle();
        s.events[handle] = std::make_shared<event>(event{current, nullptr, nullptr});
        *into = handle_of<CUevent>(handle);
        return CUDA_SUCCESS;
    };
    return call_in_context(__func__, body);
}

CUresult CUDAAPI cuEventDestroy(CUevent handle)
{
    auto const body = [&](state& s, guard&, std::string const& name, context_pointer const&) {
        auto const found = look_up(s, s.events, handle, name);
        if (!found)
            return CUDA_ERROR_INVALID_HANDLE;
        s.events.erase(number_of(handle));
        s.given_up.insert(number_of(handle));
        return found->of->error;
    };
    return call_in_context(__func__, body, true);
}

CUresult CUDAAPI cuEventRecord(CUevent event_handle, CUstream handle)
{
    auto const body = [&](state& s, guard& lock, std::string const& name, context_pointer const&,
                          stream_pointer const& found) {
        auto const event = look_up(s, s.events, event_handle, name);
        if (!event)
            return CUDA_ERROR_INVALID_HANDLE;
        if (event->of != found->of) {
            s.violate(name + " with an event and a stream of different contexts");
            return CUDA_ERROR_INVALID_HANDLE;
        }
        event->captured_in = found->captured == capture::none ? nullptr : found;
        event->last = enqueue(s, lock, *found, {});
        return CUDA_SUCCESS;
    };
    return call_on_stream(__func__, handle, body);
}

CUresult CUDAAPI cuEventQuery(CUevent handle)
{
    return call(__func__, [&](state& s, guard&, std::string const& name) {
        auto const found = look_up(s, s.events, handle, name);
        if (!found)
            return CUDA_ERROR_INVALID_HANDLE;
        if (found->of->error != CUDA_SUCCESS)
            return found->of->error;
        if (found->captured_in)
            return spoil_capture(s, name, *found->captured_in, CUDA_ERROR_CAPTURED_EVENT);
        return !found->last || found->last->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    });
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle)
{
    return call(__func__, [&](state& s, guard& lock, std::string const& name) {
        auto const found = look_up(s, s.events, handle, name);
        if (!found)
            return CUDA_ERROR_INVALID_HANDLE;
        if (found->captured_in)
            return spoil_capture(s, name, *found->captured_in, CUDA_ERROR_CAPTURED_EVENT);
        auto const place = found->last;
        s.changed.wait(lock, [&] { return !place || place->done || found->of->error != CUDA_SUCCESS; });
        return found->of->error;
    });
}

}  // extern "C"
