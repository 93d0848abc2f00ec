// SPDX-License-Identifier: Apache-2.0
//
// Streams as a program has them: made, ended, and one after another.
#include <map>
#include <mutex>
#include <utility>

#include "gpu.hpp"
#include "immortal.hpp"
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
    [[nodiscard]] map::node_type take(CUstream of) noexcept
    {
        std::scoped_lock const lock{mutex_};
        return of_streams_.extract(of);
    }

  private:
    std::mutex mutex_;
    map of_streams_;
};

}  // namespace

}  // namespace cuda

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
        auto status = scope.status() == CUDA_SUCCESS ? calls.cuCtxGetDevice(&device) : scope.status();
        if (status != CUDA_SUCCESS)
            return error_of(status);
        auto captured = CU_STREAM_CAPTURE_STATUS_NONE;
        status = calls.cuStreamIsCapturing(stream.stream.get(), &captured);
        if (status == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || captured != CU_STREAM_CAPTURE_STATUS_NONE)
            return errc::unusable_stream;
        stream.ordinal = device;
        stream.context = context;
        return error_of(status);
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

}  // namespace gpurx::detail
