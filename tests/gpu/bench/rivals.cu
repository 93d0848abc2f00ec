// SPDX-License-Identifier: Apache-2.0
//
// Kernels that gpu_bench compares the library's gather with, written as one would at first; and one
// that holds a stream.
#include <cstdint>

#include "rivals.hpp"

namespace {

using gpurx::bench::rival_piece;

template <class T>
__device__ void copy_as(rival_piece const& piece, unsigned lane)
{
    auto const* const from = reinterpret_cast<T const*>(piece.source);
    auto* const to = reinterpret_cast<T*>(piece.destination);
    for (std::uint64_t i = lane; i < piece.size / sizeof(T); i += 32)
        to[i] = from[i];
    auto const* const bytes = reinterpret_cast<std::uint8_t const*>(piece.source);
    auto* const rest = reinterpret_cast<std::uint8_t*>(piece.destination);
    for (auto i = piece.size / sizeof(T) * sizeof(T) + lane; i < piece.size; i += 32)
        rest[i] = bytes[i];
}

__device__ std::uint64_t nanoseconds()
{
    std::uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

}  // namespace

// A block to a fragment, a thread to a byte.
extern "C" __global__ void __launch_bounds__(gpurx::bench::rival_threads)
    gpurx_bench_bytes(rival_piece const* pieces, unsigned count)
{
    for (auto which = blockIdx.x; which < count; which += gridDim.x) {
        auto const piece = pieces[which];
        auto const* const from = reinterpret_cast<std::uint8_t const*>(piece.source);
        auto* const to = reinterpret_cast<std::uint8_t*>(piece.destination);
        for (std::uint64_t i = threadIdx.x; i < piece.size; i += blockDim.x)
            to[i] = from[i];
    }
}

// A warp to a fragment, in words as wide as source and destination are both aligned to.
extern "C" __global__ void __launch_bounds__(gpurx::bench::rival_threads)
    gpurx_bench_warps(rival_piece const* pieces, unsigned count)
{
    auto const lane = threadIdx.x % 32;
    auto const warps = gridDim.x * (blockDim.x / 32);
    for (auto which = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; which < count; which += warps) {
        auto const piece = pieces[which];
        auto const bits = piece.source | piece.destination;
        if (bits % 16 == 0)
            copy_as<uint4>(piece, lane);
        else if (bits % 8 == 0)
            copy_as<uint2>(piece, lane);
        else if (bits % 4 == 0)
            copy_as<std::uint32_t>(piece, lane);
        else if (bits % 2 == 0)
            copy_as<std::uint16_t>(piece, lane);
        else
            copy_as<std::uint8_t>(piece, lane);
    }
}

// Returns when the CPU has written `ticket` to `flag`, or a later one; or after a while, and says so in `expired`.
extern "C" __global__ void gpurx_bench_wait(unsigned const volatile* flag, unsigned volatile* expired, unsigned ticket)
{
    auto const start = nanoseconds();
    while (*flag < ticket) {
        if (nanoseconds() - start > gpurx::bench::longest_hold_nanoseconds) {
            *expired = ticket;
            return;
        }
    }
}
