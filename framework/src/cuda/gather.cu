// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a gather: warps take pieces in turn. Loaded at run time from the fat binary that the library carries.
#include "gather_piece.hpp"

namespace gpurx::detail {

namespace {

constexpr unsigned all_lanes = 0xffffffff;
constexpr unsigned warps_per_block = gather_block_threads / warp_lanes;

// In one access.
__device__ gather_piece load(gather_piece const& from)
{
    auto const words = *reinterpret_cast<uint4 const*>(&from);
    return {std::uint64_t{words.y} << 32 | words.x, words.z, words.w};
}

// From the lane that has it to all of the warp.
__device__ gather_piece broadcast(gather_piece const& piece, unsigned from)
{
    return {__shfl_sync(all_lanes, piece.source, from), __shfl_sync(all_lanes, piece.size, from),
            __shfl_sync(all_lanes, piece.offset, from)};
}

// Each warp takes pieces in a row. Their descriptors come across PCIe, where a small read takes as long as a large one
// and only so many can be under way: so a warp asks for all of its own at once, a descriptor for each lane.
template <class Crc, class Products, class Done>
__device__ void for_each_piece(gather_arguments const& all, Products const& products, Done done)
{
    auto const lane = threadIdx.x % warp_lanes;
    auto const warp = blockIdx.x * warps_per_block + threadIdx.x / warp_lanes;
    auto const warps = gridDim.x * warps_per_block;
    auto const share = [&](std::uint32_t of) {
        return static_cast<std::uint32_t>(std::uint64_t{of} * all.count / warps);
    };
    auto const end = share(warp + 1);
    for (auto first = share(warp); first < end; first += warp_lanes) {
        auto const mine = first + lane < end ? load(all.pieces[first + lane]) : gather_piece{};
        auto const count = min(end - first, warp_lanes);
        for (unsigned i = 0; i < count; ++i) {
            piece_layout const layout{broadcast(mine, i), all.destination};
            done(layout, gather_lane<Crc>(layout, lane, products));
        }
    }
}

// Once per block.
__device__ void load(crc_products const& from, crc_products& shared)
{
    for (unsigned i = threadIdx.x; i < sizeof shared / sizeof(vector16); i += blockDim.x)
        reinterpret_cast<vector16*>(&shared)[i] = reinterpret_cast<vector16 const*>(&from)[i];
    __syncthreads();
}

// Adds the sums of the block's warps to the state. The last block to come here writes the CRC, and leaves the
// state as it was.
__device__ void finish(gather_crc_arguments const& crc, std::uint32_t of_warp)
{
    __shared__ std::uint32_t sums[warps_per_block];
    if (threadIdx.x % warp_lanes == 0)
        sums[threadIdx.x / warp_lanes] = of_warp;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (unsigned i = 1; i < warps_per_block; ++i)
        of_warp ^= sums[i];
    atomicXor(&crc.state->sum, of_warp);
    __threadfence();
    if (atomicAdd(&crc.state->blocks, 1U) + 1 != gridDim.x)
        return;
    __threadfence();
    *crc.result = crc32c_of(atomicExch(&crc.state->sum, 0U), crc.frame);
    crc.state->blocks = 0;
}

}  // namespace

}  // namespace gpurx::detail

extern "C" __global__ void __launch_bounds__(gpurx::detail::gather_block_threads, gpurx::detail::gather_blocks_at_least)
    gpurx_gather(gpurx::detail::gather_arguments const all)
{
    using namespace gpurx::detail;
    for_each_piece<no_crc>(all, no_crc{}, [](piece_layout const&, no_crc) {});
}

extern "C" __global__ void __launch_bounds__(gpurx::detail::gather_block_threads, gpurx::detail::gather_blocks_at_least)
    gpurx_gather_crc(gpurx::detail::gather_arguments const all, gpurx::detail::gather_crc_arguments const crc)
{
    using namespace gpurx::detail;
    __shared__ crc_products products;
    load(crc.tables->products, products);
    auto const& powers = crc.tables->powers;
    auto const lane = threadIdx.x % warp_lanes;
    std::uint32_t sum = 0;
    for_each_piece<lane_crc>(all, products, [&](piece_layout const& piece, lane_crc const& of_lane) {
        sum ^= of_lane.of_piece(piece, crc.frame, products, powers);
    });
    finish(crc, __reduce_xor_sync(all_lanes, crc32c_multiply(sum, powers.of_lane[lane])));
}
