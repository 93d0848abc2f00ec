// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver, loaded at run time. The library links to no part of CUDA, so the same binary runs without CUDA.
// cuda.h gives the types, and the names with their versions: driver.cuMemAlloc is cuMemAlloc_v2.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <new>

#include <gpurx/error.hpp>

namespace gpurx::detail::cuda {

// The functions that the library uses.
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

// Loads and initialises the driver at the first call. It is never unloaded. Null: there is no driver, or it is too old;
// `code` and `why` have the reason.
[[nodiscard]] driver const* find_driver(error_code& code, diagnostics& why);
// The same for callers that need a driver. Throws system_error.
[[nodiscard]] driver const& require_driver();

// Returns the driver's result, in cuda_category().
[[nodiscard]] error_code error_of(CUresult status) noexcept;

// Returns whether the status means that the context cannot run any work, now or later.
[[nodiscard]] bool is_over(CUresult status) noexcept;

// Returns true after the process has begun to end: the driver then shuts down, and must not be called. Returns true in
// a forked child too.
[[nodiscard]] bool ending() noexcept;

// Returns the single object of this type that lives in static memory. The first call constructs it, and it is never
// destroyed. So it exists in static destructors, and when the program has no memory left. Allocates nothing itself.
template <class T>
[[nodiscard]] T& immortal()
{
    alignas(T) static std::byte memory[sizeof(T)];
    static auto* const made = new (memory) T;
    return *made;
}

}  // namespace gpurx::detail::cuda
