// SPDX-License-Identifier: Apache-2.0
//
// Streams as a program has them: made, ended, and one after another.
#include <fmt/format.h>

#include <utility>

#include "gpu.hpp"
#include "stream_point.hpp"

namespace gpurx::detail {

namespace cuda {

namespace {

CUresult order(driver const& calls, gpu_stream const& later, gpu_stream const& earlier, CUevent event) noexcept
{
    {
        context_scope const scope{calls, earlier.context};
        if (scope.status() != CUDA_SUCCESS)
            return scope.status();
        if (auto const status = calls.cuEventRecord(event, earlier.stream.get()); status != CUDA_SUCCESS)
            return status;
    }
    context_scope const scope{calls, later.context};
    return scope.status() == CUDA_SUCCESS ? calls.cuStreamWaitEvent(later.stream.get(), event, CU_EVENT_WAIT_DEFAULT)
                                          : scope.status();
}

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
    auto& on = gpu::open(ordinal);
    context_scope const scope{on};
    auto const object = fmt::format("a stream of GPU {}", ordinal);
    CUstream stream = nullptr;
    check(scope.status(), "create", object);
    check(on.calls().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "create", object);
    return stream;
}

// CUDA would end it at once and give its handle to the next stream, while points of this one are still waited for: they
// would be taken for the other's.
void destroy_stream(CUstream_st* stream) noexcept
{
    stream_point* all = nullptr;
    mark(all, {.ordinal = no_gpu, .stream = stream});
    if (all == nullptr)
        return cuda::end_stream(stream);
    when_passed(
        all, [](void* ended) noexcept { cuda::end_stream(static_cast<CUstream>(ended)); }, stream);
}

error_code order(gpu_stream const& later, gpu_stream const& earlier) noexcept
{
    using namespace cuda;
    error_code code;
    auto const failed = reporting(code, [&]() -> error_code {
        auto const& calls = require_driver();
        stream_point* point = nullptr;
        {
            context_scope const scope{calls, earlier.context};
            if (scope.status() != CUDA_SUCCESS)
                return error_of(scope.status());
            point = make_point(earlier.context);
        }
        if (point == nullptr || point->event == nullptr) {
            if (point != nullptr)
                discard(point);
            return error_of(CUDA_ERROR_OUT_OF_MEMORY);
        }
        // The wait is for the event as it is recorded here, so it may be used again at once.
        auto const status = order(calls, later, earlier, point->event);
        point->lost = status != CUDA_SUCCESS;
        discard(point);
        return error_of(status);
    });
    return code ? code : failed;
}

error_code lasting_error(gpu_stream const& stream) noexcept
{
    using namespace cuda;
    error_code code;
    auto const met = reporting(code, [&]() -> error_code {
        auto const& calls = require_driver();
        context_scope const scope{calls, stream.context};
        auto captured = CU_STREAM_CAPTURE_STATUS_NONE;
        auto const status =
            scope.status() == CUDA_SUCCESS ? calls.cuStreamIsCapturing(CU_STREAM_LEGACY, &captured) : scope.status();
        return is_over(status) ? error_of(status) : error_code{};
    });
    return code ? code : met;
}

}  // namespace gpurx::detail
