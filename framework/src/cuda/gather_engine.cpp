// SPDX-License-Identifier: Apache-2.0
#include "gather_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "memory/byte_size.hpp"
#include "stream_point.hpp"

// The fat binary that gather.cu was compiled to.
extern "C" unsigned char const gpurx_gather_kernels[];

namespace gpurx::detail::cuda {

namespace {

// Small enough for a thousand small reads on a stream that stands still, large enough for a batch of a busy flow.
constexpr std::size_t smallest_block = 64;
constexpr std::size_t slab_size = 64 << 10;
// So many in-flight blocks are asked whether they are free before another one is made.
constexpr std::size_t blocks_to_ask = 4;

}  // namespace

gather_engine::gather_engine(gpu& owner, CUstream fetches) : gpu_{owner}, stream_{fetches}
{
    auto const& calls = gpu_.calls();
    auto const object = fmt::format("the gather kernels on GPU {}", gpu_.ordinal());
    context_scope const scope{gpu_};
    check(scope.status(), "load", object);
    // Loaded for all contexts: a stream may belong to one of the program's own.
    CUlibrary library = nullptr;
    check(calls.cuLibraryLoadData(&library, gpurx_gather_kernels, nullptr, nullptr, 0, nullptr, nullptr, 0), "load",
          object);
    plain_ = find(library, "gpurx_gather");
    with_crc_ = find(library, "gpurx_gather_crc");
}

gather_engine::kernel gather_engine::find(CUlibrary library, char const* name) const
{
    auto const& calls = gpu_.calls();
    auto const object = fmt::format("{} on GPU {}", name, gpu_.ordinal());
    CUkernel found = nullptr;
    check(calls.cuLibraryGetKernel(&found, library, name), "find", object);
    kernel result{.function = reinterpret_cast<CUfunction>(found)};
    int per_processor = 0;
    check(calls.cuOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, result.function, gather_block_threads, 0),
          "ask for the occupancy of", object);
    result.blocks = static_cast<unsigned>(std::max(per_processor * gpu_.facts().processors, 1));
    return result;
}

std::uint32_t gather_engine::piece_size(std::uint64_t batch) const noexcept
{
    return gather_piece_size(batch, plain_.blocks * (gather_block_threads / warp_lanes));
}

// Several small ones at once: to pin memory is slow.
CUresult gather_engine::make_blocks(std::size_t capacity, context_scope const& within)
{
    auto const& calls = gpu_.calls();
    auto const count = std::max<std::size_t>(slab_size / (capacity * sizeof(gather_piece)), 1);
    std::vector<std::unique_ptr<block>> fresh(count);
    for (auto& each : fresh)
        each = std::make_unique<block>();
    blocks_.reserve(blocks_.size() + count);
    context_scope const scope{within, gpu_.context()};
    void* pinned = nullptr;
    auto status = scope.status();
    if (status == CUDA_SUCCESS)
        status = calls.cuMemHostAlloc(&pinned, count * capacity * sizeof(gather_piece),
                                      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (status != CUDA_SUCCESS)
        return status;
    for (std::size_t i = 0; i < count; ++i) {
        fresh[i]->pieces = static_cast<gather_piece*>(pinned) + i * capacity;
        fresh[i]->capacity = capacity;
        blocks_.push_back(fresh[i].release());
    }
    return CUDA_SUCCESS;
}

CUresult gather_engine::take_block(std::size_t pieces, context_scope const& within, block*& taken)
{
    for (std::size_t asked = 0, seen = 0; seen < blocks_.size() && asked < blocks_to_ask; ++seen) {
        auto* const candidate = blocks_[next_++ % blocks_.size()];
        if (candidate->capacity < pieces)
            continue;
        ++asked;
        if (candidate->used != nullptr && !passed(*candidate->used, within))
            continue;
        if (candidate->used != nullptr)
            discard(std::exchange(candidate->used, nullptr));
        taken = candidate;
        return CUDA_SUCCESS;
    }
    next_ = blocks_.size();
    auto const status = make_blocks(std::bit_ceil(std::max(pieces, smallest_block)), within);
    if (status == CUDA_SUCCESS)
        taken = blocks_[next_++];
    return status;
}

CUresult gather_engine::prepare(std::span<fragment const> fragments, std::uint64_t destination,
                                context_scope const& within, block*& filled)
{
    std::uint64_t size = 0;
    for (auto const& piece : fragments)
        size += piece.size;
    auto const limit = piece_size(size);
    pieces_.clear();
    std::uint32_t offset = 0;
    for (auto const& piece : fragments) {
        if (piece.address != 0)
            offset = plan_gather({&piece, 1}, destination, offset, limit, pieces_);
        else
            offset += static_cast<std::uint32_t>(piece.size);
    }
    auto const status = take_block(pieces_.size(), within, filled);
    if (status == CUDA_SUCCESS)
        std::ranges::copy(pieces_, filled->pieces);
    return status;
}

CUresult gather_engine::run(kernel const& which, block& with, std::uint64_t destination, gather_crc_arguments* crc,
                            place const& on)
{
    constexpr unsigned warps_per_block = gather_block_threads / warp_lanes;
    gather_arguments all{
        .pieces = with.pieces, .count = static_cast<std::uint32_t>(pieces_.size()), .destination = destination};
    std::array<void*, 2> arguments{&all, crc};
    auto const wanted = (all.count + warps_per_block - 1) / warps_per_block;
    auto const status =
        gpu_.calls().cuLaunchKernel(which.function, std::clamp(wanted, 1U, which.blocks), 1, 1, gather_block_threads, 1,
                                    1, 0, on.stream, arguments.data(), nullptr);
    if (status == CUDA_SUCCESS)
        with.used = record_point(on.stream, on.scope);
    return status;
}

CUresult gather_engine::launch(std::span<fragment const> fragments, std::uint64_t destination, place const& on,
                               stream_point** behind)
{
    std::scoped_lock const lock{mutex_};
    block* filled = nullptr;
    auto status = prepare(fragments, destination, on.scope, filled);
    if (status != CUDA_SUCCESS || pieces_.empty())
        return status;
    status = run(plain_, *filled, destination, nullptr, on);
    if (status == CUDA_SUCCESS && behind != nullptr && filled->used != nullptr) {
        filled->used->holders.fetch_add(1, std::memory_order_relaxed);
        *behind = filled->used;
    }
    return status;
}

CUresult gather_engine::launch_crc32c(std::span<fragment const> fragments, std::uint64_t destination,
                                      std::uint64_t size, std::uint64_t result, place const& on)
{
    std::scoped_lock const lock{mutex_};
    block* filled = nullptr;
    auto status = prepare(fragments, destination, on.scope, filled);
    if (status == CUDA_SUCCESS)
        status = provide_crc(*filled, on.scope);
    if (status != CUDA_SUCCESS)
        return status;
    gather_crc_arguments crc{.tables = tables_,
                             .state = filled->state,
                             .result = reinterpret_cast<std::uint32_t*>(result),
                             .frame = crc_frame_for(destination, size)};
    return run(with_crc_, *filled, destination, &crc, on);
}

// The tables, once, and a state for this block, once: in memory that kernels of all contexts reach.
CUresult gather_engine::provide_crc(block& with, context_scope const& within)
{
    if (with.state != nullptr)
        return CUDA_SUCCESS;
    auto const& calls = gpu_.calls();
    context_scope const scope{within, gpu_.context()};
    auto status = scope.status();
    auto const to_gpu = [&](void const* from, std::size_t size, std::size_t offset) {
        auto const address = crc_memory_->address() + offset;
        status = calls.cuMemcpyHtoDAsync(address, from, size, stream_);
        if (status == CUDA_SUCCESS)
            status = calls.cuStreamSynchronize(stream_);
        return address;
    };
    if (status != CUDA_SUCCESS)
        return status;
    if (crc_memory_ == nullptr) {
        auto fresh = std::make_unique<device_block>(gpu_, sizeof(crc_tables), device_block::use::kernels);
        crc_memory_ = fresh.release();
        tables_ = reinterpret_cast<crc_tables*>(to_gpu(&crc_tables_of_gather(), sizeof(crc_tables), 0));
    }
    auto const offset = round_up(sizeof(crc_tables), sizeof(gather_crc_state)) + crc_states_ * sizeof(gather_crc_state);
    if (status == CUDA_SUCCESS && offset + sizeof(gather_crc_state) > crc_memory_->size())
        return CUDA_ERROR_OUT_OF_MEMORY;  // a quarter of a million launches under way
    static constexpr gather_crc_state zero{};
    if (status == CUDA_SUCCESS)
        with.state = reinterpret_cast<gather_crc_state*>(to_gpu(&zero, sizeof zero, offset));
    ++crc_states_;
    return status;
}

CUresult gather_engine::bring(std::span<fragment const> fragments, std::span<std::byte> destination,
                              context_scope const& within)
{
    auto const& calls = gpu_.calls();
    std::scoped_lock const lock{bounce_mutex_};
    context_scope const scope{within, gpu_.context()};
    auto status = scope.status();
    if (bounce_ == nullptr && status == CUDA_SUCCESS) {
        void* pinned = nullptr;
        status = calls.cuMemHostAlloc(&pinned, bounce_size, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
        bounce_ = static_cast<std::byte*>(pinned);
    }
    if (status == CUDA_SUCCESS)
        status = launch(fragments, reinterpret_cast<std::uint64_t>(bounce_), {stream_, scope});
    if (status == CUDA_SUCCESS)
        status = calls.cuStreamSynchronize(stream_);
    if (status == CUDA_SUCCESS)
        std::memcpy(destination.data(), bounce_, destination.size());
    return status;
}

}  // namespace gpurx::detail::cuda
