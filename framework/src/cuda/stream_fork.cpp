// SPDX-License-Identifier: Apache-2.0
//
// Streams beside a program's stream. They belong to the GPU's primary context, and last until the process ends.
#include <algorithm>
#include <gpurx/cuda_stream.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "gpu.hpp"
#include "stream_point.hpp"

namespace gpurx {

namespace detail {

namespace cuda {

// A stream for forks.
struct branch {
    CUstream stream = nullptr;
    stream_point* last = nullptr;  // behind the work of its last fork; null: that has passed
    bool is_taken = true;
};

namespace {

// More would share the queues of the hardware: CUDA_DEVICE_MAX_CONNECTIONS is 8 by default.
constexpr std::size_t most_of_fork = 8;
// Enough for four forks at a time. Later ones get fewer, or none, so forks of a stalled stream do not fill its queue.
constexpr std::size_t most_of_gpu = 32;

class branches {
  public:
    // Returns one whose work has passed, so that no fork waits for another's stream. Null: none is left. `within`: the
    // GPU's context. Throws system_error and std::bad_alloc.
    [[nodiscard]] branch* take(gpu const& on, context_scope const& within)
    {
        for (std::size_t next = 0; auto* const known = claim(on, next); put(*known)) {
            if (known->last != nullptr && !passed(*known->last, within))
                continue;
            if (known->last != nullptr)
                discard(std::exchange(known->last, nullptr));
            return known;
        }
        return has_room(on) ? make(on) : nullptr;
    }
    void put(branch& back) noexcept
    {
        std::scoped_lock const lock{mutex_};
        back.is_taken = false;
    }

  private:
    // Returns the first from number `next` on that is not taken.
    [[nodiscard]] branch* claim(gpu const& on, std::size_t& next)
    {
        std::scoped_lock const lock{mutex_};
        auto& known = of_contexts_[on.context()];
        while (next < known.size()) {
            auto* const candidate = known[next++].get();
            if (!std::exchange(candidate->is_taken, true))
                return candidate;
        }
        return nullptr;
    }
    [[nodiscard]] bool has_room(gpu const& on)
    {
        std::scoped_lock const lock{mutex_};
        return of_contexts_[on.context()].size() < most_of_gpu;
    }
    [[nodiscard]] branch* make(gpu const& on)
    {
        auto fresh = std::make_unique<branch>();
        fresh->stream = on.make_stream();
        std::scoped_lock const lock{mutex_};
        return of_contexts_[on.context()].emplace_back(std::move(fresh)).get();
    }

    std::mutex mutex_;  // guards the map and is_taken; no call of the driver is made under it
    std::map<CUcontext, std::vector<std::unique_ptr<branch>>> of_contexts_;
};

// Returns the GPU of all of it, or no_gpu.
int gpu_of(std::span<memory_span const> memory) noexcept
{
    auto found = no_gpu;
    for (auto const& each : memory) {
        auto const ordinal = place_of(each.address()).ordinal;
        if (ordinal == no_gpu || (found != no_gpu && found != ordinal))
            return no_gpu;
        found = ordinal;
    }
    return found;
}

}  // namespace

}  // namespace cuda

struct fork_state {
    cuda::gpu& on;
    gpu_stream from;
    bool is_owned;  // `from` is a cuda_stream, and may end before the join
    std::vector<cuda::branch*> taken;

    // Returns null if there is nothing to fork, or if an operation on `stream` would fail. That operation says why.
    // Throws system_error and std::bad_alloc.
    [[nodiscard]] static std::unique_ptr<fork_state> make(cuda_stream_ref stream, std::span<memory_span const> memory)
    {
        auto const is_default = stream.get() == nullptr || stream.get() == CU_STREAM_LEGACY;
        gpu_stream from{.ordinal = is_default ? cuda::gpu_of(memory) : no_gpu, .stream = stream};
        if (memory.empty() || stream.get() == CU_STREAM_PER_THREAD || (is_default && from.ordinal == no_gpu) ||
            locate(from))
            return nullptr;
        auto& on = cuda::gpu::open(from.ordinal);
        if (from.context != on.context())
            return nullptr;
        return std::make_unique<fork_state>(fork_state{on, from, is_owned_stream(stream.get()), {}});
    }

    // Takes branches, which wait for the work on `from`. Throws system_error and std::bad_alloc.
    void take(std::size_t count)
    {
        using namespace cuda;
        context_scope const scope{on};
        if (scope.status() != CUDA_SUCCESS)
            return;
        taken.reserve(count);
        for (branch* next = nullptr; taken.size() < count; taken.push_back(next))
            if ((next = immortal<branches>().take(on, scope)) == nullptr)
                break;
        if (!taken.empty() && !begin())
            put_back();
    }

    [[nodiscard]] bool begin() const noexcept
    {
        using namespace cuda;
        auto* const point = make_point(on.context());
        if (point == nullptr)
            return false;
        record(*point, from.stream.get());
        auto const begins = [&](branch const* each) {
            return !point->lost &&
                   on.calls().cuStreamWaitEvent(each->stream, point->event, CU_EVENT_WAIT_DEFAULT) == CUDA_SUCCESS;
        };
        auto const all = std::ranges::all_of(taken, begins);
        discard(point);
        return all;
    }

    void put_back() noexcept
    {
        for (auto* const each : taken)
            cuda::immortal<cuda::branches>().put(*each);
        taken.clear();
    }

    // `from` waits for each. Where it cannot, in a capture or after its end, this thread does.
    void join() noexcept
    {
        using namespace cuda;
        context_scope const scope{on};
        auto* const stream = from.stream.get();
        auto const can_wait =
            scope.status() == CUDA_SUCCESS && (!is_owned || is_owned_stream(stream)) && !is_captured(stream);
        for (auto* const each : taken) {
            auto const waits = can_wait && joins(*each, stream);
            if (!waits && scope.status() == CUDA_SUCCESS)
                static_cast<void>(on.calls().cuStreamSynchronize(each->stream));
        }
        put_back();
    }

    // Has `stream` wait for the branch. Returns false if it cannot.
    [[nodiscard]] bool joins(cuda::branch& with, CUstream stream) const noexcept
    {
        with.last = cuda::make_point(on.context());
        if (with.last == nullptr)
            return false;
        cuda::record(*with.last, with.stream);
        return !with.last->lost &&
               on.calls().cuStreamWaitEvent(stream, with.last->event, CU_EVENT_WAIT_DEFAULT) == CUDA_SUCCESS;
    }
};

}  // namespace detail

stream_fork::stream_fork(cuda_stream_ref stream, std::span<memory_span const> memory, std::size_t count) noexcept
    : stream_{stream}
{
    if (count < 2)
        return;
    error_code ignored;
    state_ = detail::cuda::reporting(ignored, [&] { return detail::fork_state::make(stream, memory); });
    static_cast<void>(detail::cuda::reporting(ignored, [&] {
        if (state_ != nullptr)
            state_->take(std::min(count, detail::cuda::most_of_fork));
        return true;
    }));
}

stream_fork::~stream_fork()
{
    join();
}

cuda_stream_ref stream_fork::operator[](std::size_t number) const noexcept
{
    if (state_ == nullptr || state_->taken.empty())
        return stream_;
    return cuda_stream_ref{state_->taken[number % state_->taken.size()]->stream};
}

void stream_fork::join() noexcept
{
    if (state_ != nullptr)
        state_->join();
    state_.reset();
}

}  // namespace gpurx
