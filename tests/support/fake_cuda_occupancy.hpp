// SPDX-License-Identifier: Apache-2.0
//
// How many blocks of the library's kernels run side by side on one processor of the fake GPU, an H100.
#pragma once

#include <algorithm>
#include <string_view>

namespace fake_cuda::inside {

struct kernel_needs {
    unsigned registers = 0;     // of a thread
    unsigned shared_bytes = 0;  // of a block
};

// What the CUDA 13.0 compiler says with the flags of cmake/cuda.cmake, for sm_90:
//   nvcc -std=c++20 --expt-relaxed-constexpr -O3 -fatbin -Xptxas -v -gencode=arch=compute_90,code=sm_90
//       -I framework/src -I framework/include framework/src/cuda/gather.cu -o /dev/null
constexpr kernel_needs needs_of(std::string_view kernel) noexcept
{
    if (kernel == "gpurx_gather")
        return {64, 0};
    if (kernel == "gpurx_gather_crc")
        return {64, 19488};
    return {255, 49152};  // nobody knows: the most that there can be
}

// By the rules of compute capability 9.0: registers are given to a warp in units of 256, shared memory to a block in
// units of 128 bytes and with 1 KiB more.
constexpr int blocks_per_processor(std::string_view kernel, unsigned threads) noexcept
{
    constexpr unsigned most_blocks = 32;
    constexpr unsigned all_warps = 64;
    constexpr unsigned all_registers = 65536;
    constexpr unsigned all_shared = 228 << 10;
    auto const round_up = [](unsigned size, unsigned unit) { return (size + unit - 1) / unit * unit; };
    auto const needs = needs_of(kernel);
    auto const warps = round_up(threads, 32) / 32;
    auto const by_registers = all_registers / round_up(needs.registers * 32, 256) / warps;
    auto const by_shared = all_shared / (round_up(needs.shared_bytes, 128) + 1024);
    return static_cast<int>(std::min({most_blocks, all_warps / warps, by_registers, by_shared}));
}

}  // namespace fake_cuda::inside
