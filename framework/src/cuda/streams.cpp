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
