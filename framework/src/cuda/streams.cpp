// SPDX-License-Identifier: Apache-2.0
//
// Locates, makes, ends and orders streams of a program, and keeps count of how far each is behind.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "gpu.hpp"
#include "stream_point.hpp"

namespace gpurx::detail {

namespace cuda {

namespace {

void end_stream(CUstream stream) noexcept
{
    auto const& calls = require_driver();  // it is there, as it has made the stream
    CUcontext context = nullptr;
    if (context_of(calls, {.ordinal = no_gpu, .stream = stream}, context) != CUDA_SUCCESS)
        return;
    context_scope const scope{calls, context};
    if (scope.status() == CUDA_SUCCESS)
        static_cast<void>(calls.cuStreamDestroy(stream));
}

// The memory for a last point of each stream that was made: it may end when there is no other.
class stream_ends {
  public:
    using map = std::map<CUstream, spare_point>;

    // Throws std::bad_alloc.
    [[nodiscard]] static map::node_type make()
    {
        map one;
        one[nullptr].provide();
        return one.extract(one.begin());
    }
    void keep(map::node_type end, CUstream of) noexcept
    {
        end.key() = of;
        std::scoped_lock const lock{mutex_};
        of_streams_.insert(std::move(end));
    }
    [[nodiscard]] bool contain(CUstream stream) noexcept
    {
        std::scoped_lock const lock{mutex_};
        return of_streams_.contains(stream);
    }
    [[nodiscard]] map::node_type take(CUstream of) noexcept
    {
        std::scoped_lock const lock{mutex_};
        return of_streams_.extract(of);
    }

  private:
    std::mutex mutex_;
    map of_streams_;
};

struct backlogs {
    std::mutex mutex;
    std::map<std::pair<CUcontext, CUstream>, stream_backlog> of_streams;
};

void tell(int event) noexcept
{
    std::uint64_t const one = 1;
    [[maybe_unused]] auto const written = ::write(event, &one, sizeof one);
}

}  // namespace

}  // namespace cuda

error_code resolve(gpu_stream& stream) noexcept
{
    if (stream.stream.get() == CU_STREAM_PER_THREAD)
        return errc::unusable_stream;
    error_code code;
    auto const refused = cuda::reporting(code, [&] {
        std::optional<cuda::context_scope> entered;
        auto& on = cuda::gpu::open(stream.ordinal);
        auto const unusable = cuda::enter_usable(on, stream, entered);
        if (entered)
            stream.context = entered->context();
        return unusable;
    });
    return code ? code : refused;
}

error_code locate(gpu_stream& stream) noexcept
{
    using namespace cuda;
    error_code code;
    auto const refused = reporting(code, [&]() -> error_code {
        auto const& calls = require_driver();
        CUcontext context = nullptr;
        if (auto const status = context_of(calls, stream, context); status != CUDA_SUCCESS)
            return error_of(status);
        context_scope const scope{calls, context};
        CUdevice device = 0;
        auto const status = scope.status() == CUDA_SUCCESS ? calls.cuCtxGetDevice(&device) : scope.status();
        if (status != CUDA_SUCCESS)
            return error_of(status);
        auto const unusable = refuse_captured(calls, stream.stream.get());
        if (!unusable) {
            stream.ordinal = device;
            stream.context = context;
        }
        return unusable;
    });
    return code ? code : refused;
}

CUstream_st* create_stream(int ordinal)
{
    using namespace cuda;
    auto const& on = gpu::open(ordinal);
    auto end = stream_ends::make();
    auto* const stream = on.make_stream();
    immortal<stream_ends>().keep(std::move(end), stream);
    return stream;
}

// CUDA would end it at once and give its handle to the next stream, while points of this one are still waited for: they
// would be taken for the other's.
void destroy_stream(CUstream_st* stream) noexcept
{
    stream_point* all = nullptr;
    auto end = cuda::immortal<cuda::stream_ends>().take(stream);
    mark(all, {.ordinal = no_gpu, .stream = stream}, end.mapped());
    if (all == nullptr)
        return cuda::end_stream(stream);
    when_passed(
        all, [](void* ended, error_code) noexcept { cuda::end_stream(static_cast<CUstream>(ended)); }, stream,
        waiting_for::pages);
}

bool is_owned_stream(CUstream_st* stream) noexcept
{
    return cuda::immortal<cuda::stream_ends>().contain(stream);
}

error_code order(gpu_stream const& later, gpu_stream const& earlier) noexcept
{
    using namespace cuda;
    error_code code;
    auto const failed = reporting(code, [&]() -> error_code {
        context_scope const scope{require_driver(), later.context};
        if (scope.status() != CUDA_SUCCESS)
            return error_of(scope.status());
        return error_of(wait_behind(later.stream.get(), scope, earlier.stream.get(), earlier.context));
    });
    return code ? code : failed;
}

// ---- streams that do not keep up ----

// The driver is asked without the mutex: other flows of the stream must not wait for its answer.
bool stream_backlog::is_full() noexcept
{
    for (;;) {
        auto* const asked = hold_first();
        if (asked == nullptr)
            return false;
        stream_point* passed = nullptr;
        auto const is_over = cuda::passed(*asked);
        if (is_over) {
            std::scoped_lock const lock{mutex_};
            if (first_ == asked && second_ != nullptr)
                passed = std::exchange(first_, std::exchange(second_, nullptr));
        }
        cuda::discard(asked);
        if (passed != nullptr)
            cuda::discard(passed);
        if (!is_over)
            return true;
    }
}

stream_point* stream_backlog::hold_first() noexcept
{
    std::scoped_lock const lock{mutex_};
    return second_ == nullptr ? nullptr : cuda::hold(*first_);
}

bool stream_backlog::notify(int event) noexcept
{
    if (!is_full())
        return false;
    stream_point* first = nullptr;
    {
        std::scoped_lock const lock{mutex_};
        if (second_ == nullptr)
            return false;
        add_waiter(event);
        if (std::exchange(awaited_, true))
            return true;
        first = cuda::stand_in_for(*first_);
    }
    // Without the mutex: this may call on_passed() at once.
    if (first == nullptr)
        on_passed(this, {});
    else
        when_passed(first, on_passed, this, waiting_for::stream);
    return true;
}

void stream_backlog::forget(int event) noexcept
{
    std::scoped_lock const lock{mutex_};
    std::erase(waiters_, event);
}

void stream_backlog::add(std::size_t commands, stream_point& behind) noexcept
{
    stream_point* replaced = nullptr;
    {
        std::scoped_lock const lock{mutex_};
        open_ += commands;
        // Of a lost point nobody knows when it passes before the stream has nothing to do.
        if (open_ < window || behind.lost)
            return;
        open_ = 0;
        // There is an earlier one if threads all had found room.
        replaced = std::exchange(first_ == nullptr ? first_ : second_, cuda::hold(behind));
    }
    if (replaced != nullptr)
        cuda::discard(replaced);
}

// Without memory for it, it is told at once, and will ask again.
void stream_backlog::add_waiter(int event) noexcept
{
    try {
        if (std::ranges::find(waiters_, event) == waiters_.end())
            waiters_.push_back(event);
    } catch (std::bad_alloc const&) {
        cuda::tell(event);
    }
}

void stream_backlog::on_passed(void* backlog, error_code) noexcept
{
    auto& self = *static_cast<stream_backlog*>(backlog);
    std::scoped_lock const lock{self.mutex_};
    self.awaited_ = false;
    for (auto const event : self.waiters_)
        cuda::tell(event);
    self.waiters_.clear();
}

// Kept though the stream may be gone: CUDA uses handles again, and what an earlier stream of the handle has left is
// found to have passed.
stream_backlog* backlog_of(gpu_stream const& on) noexcept
{
    using namespace cuda;
    error_code code;
    return reporting(code, [&] {
        auto& all = immortal<backlogs>();
        std::scoped_lock const lock{all.mutex};
        return &all.of_streams[{on.context, on.stream.get()}];
    });
}

}  // namespace gpurx::detail
