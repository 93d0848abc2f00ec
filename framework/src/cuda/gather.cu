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
template <class Crc, class Done>
__device__ void for_each_piece(gather_arguments const& all, typename Crc::constants const& constants, Done done)
{
    auto const lane = threadIdx.x % warp_lanes;
    auto const warp = blockIdx.x * warps_per_block + threadIdx.x / warp_lanes;
    auto const warps = gridDim.x * warps_per_block;
    auto const each = all.count / warps;
    auto const rest = all.count % warps;
    auto const share = [&](std::uint32_t of) { return of * each + min(of, rest); };
    auto const end = share(warp + 1);
    for (auto first = share(warp); first < end; first += warp_lanes) {
        auto const mine = first + lane < end ? load(all.pieces[first + lane]) : gather_piece{};
        auto const count = min(end - first, warp_lanes);
        for (unsigned i = 0; i < count; ++i) {
            piece_layout const layout{broadcast(mine, i), all.destination};
            done(layout, gather_lane<Crc>(layout, lane, constants));
        }
    }
}

#if __CUDA_ARCH__ < 1000
// The sums of a warp, by the tensor cores: each bit of a sum is the parity of those bits of the data that it depends
// on, which `and` and `popc` over a matrix count. Later GPUs do that step by step, with more work than lane_crc.
class matrix_crc {
  public:
    using constants = crc_matrices;
    __device__ static constants const& of(crc_tables const& all) { return all.matrices; }

    static constexpr unsigned rounds_at_once = 2;
    static constexpr unsigned shifted_at_once = 2;
    static constexpr unsigned ends_at_once = 2;

    __device__ matrix_crc(piece_layout const& piece, unsigned lane, constants const& matrices)
        : matrices_{matrices}, of_round_{&matrices.of_round[piece.rounds - 1][0][lane]}
    {}

    __device__ void add(vector16 const& vector)
    {
        for (unsigned i = 0; i < 4; i += 2) {
            auto const columns = of_round_[i / 2 * warp_lanes];
            multiply(counts_[i], vector, columns.word[0], columns.word[1]);
            multiply(counts_[i + 1], vector, columns.word[2], columns.word[3]);
        }
        of_round_ -= 2 * warp_lanes;
    }
    __device__ void join() const { __syncwarp(); }

    __device__ std::uint32_t share(unsigned lane, crc_powers const&) const
    {
        std::uint32_t sum = 0;
        for (unsigned i = 0; i < 4; ++i) {
            auto const counts_for = matrices_.of_row[i][lane];
            for (unsigned j = 0; j < 4; ++j)
                sum ^= counts_[i][j] & 1 ? counts_for.word[j] : 0;
        }
        return sum;
    }

  private:
    __device__ static void multiply(std::uint32_t (&counts)[4], vector16 const& rows, std::uint32_t first,
                                    std::uint32_t second)
    {
        asm volatile(
            "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+r"(counts[0]), "+r"(counts[1]), "+r"(counts[2]), "+r"(counts[3])
            : "r"(rows.word[0]), "r"(rows.word[1]), "r"(rows.word[2]), "r"(rows.word[3]), "r"(first), "r"(second));
    }

    constants const& matrices_;
    vector16 const* of_round_;
    std::uint32_t counts_[4][4] = {};
};
using piece_crc = matrix_crc;
#else
using piece_crc = lane_crc;
#endif

// By all lanes of the warp at once.
__device__ std::uint32_t product(std::uint32_t sum, std::uint32_t const (&bits)[32])
{
    return __reduce_xor_sync(all_lanes, part_of(sum, bits, threadIdx.x % warp_lanes));
}

// Once per block.
__device__ void load(piece_crc::constants const& from, piece_crc::constants& shared)
{
    for (unsigned i = threadIdx.x; i < sizeof shared / sizeof(vector16); i += gather_block_threads)
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
    for_each_piece<no_crc>(all, {}, [](piece_layout const&, no_crc const&) {});
}

extern "C" __global__ void __launch_bounds__(gpurx::detail::gather_block_threads, gpurx::detail::gather_blocks_at_least)
    gpurx_gather_crc(gpurx::detail::gather_arguments const all, gpurx::detail::gather_crc_arguments const crc)
{
    using namespace gpurx::detail;
    __shared__ piece_crc::constants constants;
    load(piece_crc::of(*crc.tables), constants);
    auto const& powers = crc.tables->powers;
    auto const lane = threadIdx.x % warp_lanes;
    std::uint32_t sum = 0;
    std::uint32_t counted_to = 0;  // in vectors; they are not as many as to need the upper bits
    for_each_piece<piece_crc>(all, constants, [&](piece_layout const& piece, piece_crc const& of_lane) {
        auto const end = static_cast<std::uint32_t>(piece.counted_to() / vector_bytes);
        // Neighbours: what lies between their ends is not as much as two pieces.
        if (sum != 0)
            sum = product(sum, powers.of_vectors[0][end - counted_to]);
        counted_to = end;
        sum ^= __reduce_xor_sync(all_lanes, of_lane.share(lane, powers));
    });
    if (sum != 0)
        sum = weigh(sum, static_cast<std::uint32_t>(crc.frame.end / vector_bytes) - counted_to, powers, product);
    finish(crc, sum);
}
