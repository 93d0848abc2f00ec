// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver, found at run time: the library links to no part of CUDA, and the same binary runs where there is
// none. cuda.h gives the types, and the names with their versions: driver.cuMemAlloc is cuMemAlloc_v2.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <new>

#include <gpurx/error.hpp>

namespace gpurx::detail::cuda {

// What is used of it.
// clang-format off
#define GPURX_CUDA_FUNCTIONS(function)                     \
    function(cuGetErrorName)                               \
    function(cuGetErrorString)                             \
    function(cuInit)                                       \
    function(cuDriverGetVersion)                           \
    function(cuDeviceGet)                                  \
    function(cuDeviceGetCount)                             \
    function(cuDeviceGetName)                              \
    function(cuDeviceGetAttribute)                         \
    function(cuDevicePrimaryCtxRetain)                     \
    function(cuCtxPushCurrent)                             \
    function(cuCtxPopCurrent)                              \
    function(cuCtxGetCurrent)                              \
    function(cuCtxGetDevice)                               \
    function(cuMemGetAllocationGranularity)                \
    function(cuMemCreate)                                  \
    function(cuMemRelease)                                 \
    function(cuMemAddressReserve)                          \
    function(cuMemAddressFree)                             \
    function(cuMemMap)                                     \
    function(cuMemUnmap)                                   \
    function(cuMemSetAccess)                               \
    function(cuMemGetAddressRange)                         \
    function(cuMemAlloc)                                   \
    function(cuMemFree)                                    \
    function(cuMemHostAlloc)                               \
    function(cuMemFreeHost)                                \
    function(cuMemHostRegister)                            \
    function(cuMemHostUnregister)                          \
    function(cuMemGetHandleForAddressRange)                \
    function(cuPointerGetAttribute)                        \
    function(cuPointerGetAttributes)                       \
    function(cuMemcpyAsync)                                \
    function(cuMemcpyHtoDAsync)                            \
    function(cuMemsetD8Async)                              \
    function(cuMemcpyDtoHAsync)                            \
    function(cuStreamCreate)                               \
    function(cuStreamDestroy)                              \
    function(cuStreamGetCtx)                               \
    function(cuStreamWaitEvent)                            \
    function(cuStreamSynchronize)                          \
    function(cuStreamQuery)                                \
    function(cuEventCreate)                                \
    function(cuEventDestroy)                               \
    function(cuEventRecord)                                \
    function(cuEventQuery)                                 \
    function(cuStreamIsCapturing)                          \
    function(cuThreadExchangeStreamCaptureMode)            \
    function(cuLibraryLoadData)                            \
    function(cuLibraryGetKernel)                           \
    function(cuLibraryUnload)                              \
    function(cuOccupancyMaxActiveBlocksPerMultiprocessor)  \
    function(cuLaunchKernel)                               \
    function(cuFlushGPUDirectRDMAWrites)
// clang-format on

struct driver {
// NOLINTNEXTLINE(bugprone-macro-parentheses): of the name of a member
#define GPURX_DECLARE(name) decltype(&::name) name = nullptr;
    GPURX_CUDA_FUNCTIONS(GPURX_DECLARE)
#undef GPURX_DECLARE
};

// Loaded and initialised by the first call, and never unloaded. Null: there is none, or it is too old; `code`
// and `why` say which.
[[nodiscard]] driver const* find_driver(error_code& code, diagnostics& why);
// The same for those who cannot do without. Throws system_error.
[[nodiscard]] driver const& require_driver();

// A driver's answer, in cuda_category().
[[nodiscard]] error_code error_of(CUresult status) noexcept;

// Nothing runs in a context that answers so, now or later.
[[nodiscard]] bool is_over(CUresult status) noexcept;

// True once the process has begun to end: the driver undoes itself then, and must not be called any more. True as well
// in a child that was forked.
[[nodiscard]] bool ending() noexcept;

// What has to be there in static destructors, too, and the first time when the program has no memory left: the only one
// of its type that is made so. The first call makes it, and it is never destroyed. Allocates nothing itself.
template <class T>
[[nodiscard]] T& immortal()
{
    alignas(T) static std::byte memory[sizeof(T)];
    static auto* const made = new (memory) T;
    return *made;
}

}  // namespace gpurx::detail::cuda
