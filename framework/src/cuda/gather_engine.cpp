// SPDX-License-Identifier: Apache-2.0
#include "gather_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "base/byte_size.hpp"
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
// Many small reads on a stream that stands still have a block each.
constexpr std::size_t smallest_bounce = 4 << 10;
// That one copy crosses PCIe at full speed with, and as the staging of flows.
constexpr std::size_t largest_bounce = 512 << 10;

// Unloaded again if not all of it can be had.
class kernel_library {
  public:
    // For all contexts: a stream may belong to one of the program's own.
    explicit kernel_library(gpu const& on) : on_{on}
    {
        check(on_.calls().cuLibraryLoadData(&handle_, gpurx_gather_kernels, nullptr, nullptr, 0, nullptr, nullptr, 0),
              "load", fmt::format("the gather kernels on GPU {}", on_.ordinal()));
    }
    kernel_library(kernel_library const&) = delete;
    kernel_library& operator=(kernel_library const&) = delete;
    ~kernel_library()
    {
        if (handle_ != nullptr)
            static_cast<void>(on_.calls().cuLibraryUnload(handle_));
    }
    [[nodiscard]] CUlibrary get() const noexcept { return handle_; }
    void keep() noexcept { handle_ = nullptr; }

  private:
    gpu const& on_;
    CUlibrary handle_ = nullptr;
};

// A stream that ends with its scope.
class short_stream {
  public:
    explicit short_stream(gpu const& on) : on_{on}, handle_{on.make_stream()} {}
    short_stream(short_stream const&) = delete;
    short_stream& operator=(short_stream const&) = delete;
    ~short_stream() { static_cast<void>(on_.calls().cuStreamDestroy(handle_)); }
    [[nodiscard]] CUstream get() const noexcept { return handle_; }

  private:
    gpu const& on_;
    CUstream handle_;
};

constexpr auto first_state = round_up(sizeof(crc_tables), sizeof(gather_crc_state));

gather_crc_state* state_at(device_block const& memory, std::size_t index) noexcept
{
    return reinterpret_cast<gather_crc_state*>(memory.address() + first_state) + index;
}

}  // namespace

gather_engine::gather_engine(gpu& owner, CUstream fetches) : gpu_{owner}, fetches_{fetches}
{
    context_scope const scope{gpu_};
    check(scope.status(), "load", fmt::format("the gather kernels on GPU {}", gpu_.ordinal()));
    kernel_library library{gpu_};
    plain_ = find(library.get(), "gpurx_gather");
    with_crc_ = find(library.get(), "gpurx_gather_crc");
    // None of the streams that last: they may wait for a program's.
    short_stream const stream{gpu_};
    auto memory = std::make_unique<device_block>(gpu_, sizeof(crc_tables), device_block::use::kernels);
    upload_tables(*memory, stream.get());
    launch_once(*memory, stream.get(), true);
    crc_memory_ = memory.release();
    library.keep();
}

void gather_engine::upload_tables(device_block const& memory, CUstream stream) const
{
    auto const object = fmt::format("the CRC tables on GPU {}", gpu_.ordinal());
    auto const& calls = gpu_.calls();
    check(calls.cuMemcpyHtoDAsync(memory.address(), &crc_tables_of_gather(), sizeof(crc_tables), stream), "upload",
          object);
    // All states are zero between launches.
    check(calls.cuMemsetD8Async(memory.address() + first_state, 0, memory.size() - first_state, stream), "clear",
          object);
    check(calls.cuStreamSynchronize(stream), "upload", object);
}

// A driver may load a kernel when it is launched first, and wait for all of the context then: not on a stream of the
// program's, which may be waiting for the program.
void gather_engine::launch_once(device_block const& memory, CUstream stream, bool reached) const
{
    auto const object = fmt::format("the gather kernels on GPU {}", gpu_.ordinal());
    gather_arguments nothing{.pieces = nullptr, .count = 0, .destination = 0};
    gather_crc_arguments crc{.tables = reinterpret_cast<crc_tables*>(memory.address()),
                             .state = state_at(memory, 0),
                             .result = &state_at(memory, 1)->sum,
                             .frame = crc_frame_for(0, 0)};
    std::array<void*, 2> arguments{&nothing, &crc};
    for (auto const& each : std::array{plain_, with_crc_})
        if (reached || each.function == plain_.function)
            check(gpu_.calls().cuLaunchKernel(each.function, 1, 1, 1, gather_block_threads, 1, 1, 0, stream,
                                              arguments.data(), nullptr),
                  "launch", object);
    check(gpu_.calls().cuStreamSynchronize(stream), "run", object);
}

void gather_engine::prepare(CUcontext context) noexcept
{
    auto const& calls = gpu_.calls();
    CUstream stream = nullptr;
    try {
        {
            std::scoped_lock const lock{mutex_};
            if (std::ranges::find(prepared_, context) != prepared_.end())
                return;
            prepared_.push_back(context);
        }
        context_scope const scope{calls, context};
        if (scope.status() != CUDA_SUCCESS || calls.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
            return;
        try {
            launch_once(*crc_memory_, stream, crc_memory_->is_mapped());
        } catch (system_error const&) {
            // A gather will say why.
        }
        static_cast<void>(calls.cuStreamDestroy(stream));
    } catch (std::exception const&) {
        // Without memory: the kernels are loaded when they are needed.
    }
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
          "get the occupancy of", object);
    result.blocks = static_cast<unsigned>(std::max(per_processor * gpu_.facts().processors, 1));
    return result;
}

std::uint32_t gather_engine::piece_size(std::uint64_t batch) const noexcept
{
    return gather_piece_size(batch, plain_.blocks * (gather_block_threads / warp_lanes));
}

std::span<gather_piece const> gather_engine::plan(std::span<fragment const> fragments, std::uint64_t destination) const
{
    thread_local std::vector<gather_piece> pieces;
    std::uint64_t size = 0;
    for (auto const& piece : fragments)
        size += piece.size;
    auto const limit = piece_size(size);
    pieces.clear();
    std::uint32_t offset = 0;
    for (auto const& piece : fragments) {
        if (piece.address != 0)
            offset = plan_gather({&piece, 1}, destination, offset, limit, pieces);
        else
            offset += static_cast<std::uint32_t>(piece.size);
    }
    return pieces;
}

gather_engine::block* gather_engine::claim(std::size_t pieces, std::size_t& seen) noexcept
{
    std::scoped_lock const lock{mutex_};
    while (seen++ < blocks_.size()) {
        auto* const candidate = blocks_[next_++ % blocks_.size()];
        if (candidate->capacity >= pieces && !std::exchange(candidate->taken, true))
            return candidate;
    }
    return nullptr;
}

void gather_engine::put(block& taken) noexcept
{
    std::scoped_lock const lock{mutex_};
    taken.taken = false;
}

gather_engine::block* gather_engine::find_free(std::size_t pieces, context_scope const& within) noexcept
{
    for (std::size_t asked = 0, seen = 0; asked < blocks_to_ask; ++asked) {
        auto* const candidate = claim(pieces, seen);
        if (candidate == nullptr)
            return nullptr;
        // For a lost point its stream would be asked, which may be gone; who waits for the point will see it pass.
        auto* const used = candidate->used;
        if (used == nullptr || ((!used->lost || used->done) && passed(*used, within))) {
            if (used != nullptr)
                discard(std::exchange(candidate->used, nullptr));
            return candidate;
        }
        put(*candidate);
    }
    return nullptr;
}

// Several small ones at once: to pin memory is slow.
CUresult gather_engine::make_blocks(std::size_t capacity, context_scope const& within, block*& taken)
{
    auto const count = std::max<std::size_t>(slab_size / (capacity * sizeof(gather_piece)), 1);
    std::vector<std::unique_ptr<block>> fresh(count);
    for (auto& each : fresh)
        each = std::make_unique<block>();
    {
        std::scoped_lock const lock{mutex_};
        blocks_.reserve(blocks_.size() + count);
    }
    context_scope const scope{within, gpu_.context()};
    void* pinned = nullptr;
    auto status = scope.status();
    if (status == CUDA_SUCCESS)
        status = gpu_.calls().cuMemHostAlloc(&pinned, count * capacity * sizeof(gather_piece),
                                             CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (status != CUDA_SUCCESS)
        return status;
    std::scoped_lock const lock{mutex_};
    next_ = blocks_.size() + 1;
    for (std::size_t i = 0; i < count; ++i) {
        fresh[i]->pieces = static_cast<gather_piece*>(pinned) + i * capacity;
        fresh[i]->capacity = capacity;
        blocks_.push_back(fresh[i].release());
    }
    taken = blocks_[next_ - 1];
    taken->taken = true;
    return CUDA_SUCCESS;
}

gather_engine::taken_block::taken_block(gather_engine& from, std::span<gather_piece const> pieces,
                                        context_scope const& within)
    : from_{from}, block_{from.find_free(pieces.size(), within)}
{
    if (block_ == nullptr)
        status_ = from_.make_blocks(std::bit_ceil(std::max(pieces.size(), smallest_block)), within, block_);
    if (block_ != nullptr)
        std::ranges::copy(pieces, block_->pieces);
}

gather_engine::taken_block::~taken_block()
{
    if (block_ != nullptr)
        from_.put(*block_);
}

CUresult gather_engine::run(kernel const& which, block& with, std::size_t count, std::uint64_t destination,
                            gather_crc_arguments* crc, place const& on, stream_point* behind)
{
    auto* const point = behind != nullptr ? hold(*behind) : make_point(on.scope.context());
    if (point == nullptr)
        return CUDA_ERROR_OUT_OF_MEMORY;
    constexpr unsigned warps_per_block = gather_block_threads / warp_lanes;
    gather_arguments all{.pieces = with.pieces, .count = static_cast<std::uint32_t>(count), .destination = destination};
    std::array<void*, 2> arguments{&all, crc};
    auto const wanted = (all.count + warps_per_block - 1) / warps_per_block;
    auto const status =
        gpu_.calls().cuLaunchKernel(which.function, std::clamp(wanted, 1U, which.blocks), 1, 1, gather_block_threads, 1,
                                    1, 0, on.stream, arguments.data(), nullptr);
    if (status == CUDA_SUCCESS) {
        record(*point, on.stream);
        with.used = point;
    } else {
        discard(point);
    }
    return status;
}

CUresult gather_engine::launch(std::span<fragment const> fragments, std::uint64_t destination, place const& on,
                               stream_point* behind)
{
    auto const pieces = plan(fragments, destination);
    if (pieces.empty()) {
        if (behind != nullptr)
            record(*behind, on.stream);
        return CUDA_SUCCESS;
    }
    taken_block const filled{*this, pieces, on.scope};
    if (filled.status() != CUDA_SUCCESS)
        return filled.status();
    return run(plain_, *filled, pieces.size(), destination, nullptr, on, behind);
}

CUresult gather_engine::launch_crc32c(std::span<fragment const> fragments, std::uint64_t destination,
                                      std::uint64_t size, std::uint64_t result, place const& on)
{
    // Without virtual memory the tables are of one context.
    if (!crc_memory_->is_mapped() && on.scope.context() != gpu_.context())
        return CUDA_ERROR_NOT_SUPPORTED;
    auto const pieces = plan(fragments, destination);
    taken_block const filled{*this, pieces, on.scope};
    auto const status = filled.status() == CUDA_SUCCESS ? provide_state(*filled) : filled.status();
    if (status != CUDA_SUCCESS)
        return status;
    gather_crc_arguments crc{.tables = reinterpret_cast<crc_tables*>(crc_memory_->address()),
                             .state = filled->state,
                             .result = reinterpret_cast<std::uint32_t*>(result),
                             .frame = crc_frame_for(destination, size)};
    return run(with_crc_, *filled, pieces.size(), destination, &crc, on, nullptr);
}

CUresult gather_engine::provide_state(block& with) noexcept
{
    if (with.state != nullptr)
        return CUDA_SUCCESS;
    std::scoped_lock const lock{mutex_};
    auto const room = (crc_memory_->size() - first_state) / sizeof(gather_crc_state);
    if (crc_states_ == room)
        return CUDA_ERROR_OUT_OF_MEMORY;  // two hundred thousand launches under way
    with.state = state_at(*crc_memory_, crc_states_++);
    return CUDA_SUCCESS;
}

CUresult gather_engine::bring(std::span<fragment const> fragments, std::span<std::byte> destination,
                              context_scope const& within)
{
    std::byte* bounce = nullptr;
    context_scope const scope{within, gpu_.context()};
    auto status = scope.status();
    if (status == CUDA_SUCCESS)
        status = gpu_.pinned().take(bounce_size, bounce);
    if (status != CUDA_SUCCESS)
        return status;
    auto const put_back = [this](std::byte* memory) noexcept { gpu_.pinned().put(memory, bounce_size); };
    std::unique_ptr<std::byte, decltype(put_back)> const kept{bounce, put_back};
    status = launch(fragments, reinterpret_cast<std::uint64_t>(bounce), {fetches_, scope});
    if (status == CUDA_SUCCESS)
        status = gpu_.calls().cuStreamSynchronize(fetches_);
    if (status == CUDA_SUCCESS)
        std::memcpy(destination.data(), bounce, destination.size());
    return status;
}

// ---- bytes that the kernels cannot read ----

// At the start of its own memory.
struct bounce_copy::block {
    pinned_pool& home;
    std::size_t size;  // all of it
    block* next;

    static constexpr std::size_t head = 64;
    [[nodiscard]] std::byte* bytes() noexcept { return reinterpret_cast<std::byte*>(this) + head; }
};

bounce_copy::~bounce_copy()
{
    if (behind_ == nullptr)
        return;
    if (blocks_ == nullptr) {
        discard(behind_);
        return;
    }
    record(*behind_, stream_);
    when_passed(behind_, put_back, blocks_, waiting_for::pages);
}

void bounce_copy::put_back(void* blocks, error_code) noexcept
{
    for (auto* each = static_cast<block*>(blocks); each != nullptr;) {
        auto& home = each->home;
        auto const size = each->size;
        auto* const bytes = reinterpret_cast<std::byte*>(std::exchange(each, each->next));
        home.put(bytes, size);
    }
}

bool bounce_copy::take_block()
{
    static_assert(sizeof(block) <= block::head);
    auto const size = std::clamp(std::bit_ceil(expected_ + block::head), smallest_bounce, largest_bounce);
    if (behind_ == nullptr)
        behind_ = make_point(within_.context());
    if (behind_ == nullptr)
        throw std::bad_alloc{};
    std::byte* memory = nullptr;
    if (on_.pinned().take(size, memory) != CUDA_SUCCESS)
        return false;
    blocks_ = new (memory) block{.home = on_.pinned(), .size = size, .next = blocks_};
    capacity_ = size - block::head;
    expected_ -= std::min(expected_, capacity_);
    sent_ = 0;
    filled_ = 0;
    return true;
}

CUresult bounce_copy::copy(fragment piece, std::uint64_t destination)
{
    auto status = CUDA_SUCCESS;
    if (destination != destination_ + (filled_ - sent_)) {
        status = finish();
        destination_ = destination;
    }
    while (status == CUDA_SUCCESS && piece.size > 0) {
        if (filled_ == capacity_) {
            status = finish();
            if (status != CUDA_SUCCESS)
                break;
            if (!take_block())
                return copy_directly(piece, destination_);
        }
        auto const size = std::min(piece.size, capacity_ - filled_);
        std::memcpy(blocks_->bytes() + filled_, reinterpret_cast<std::byte const*>(piece.address), size);
        filled_ += size;
        piece.address += size;
        piece.size -= size;
    }
    return status;
}

CUresult bounce_copy::copy_directly(fragment const& piece, std::uint64_t destination) noexcept
{
    ++copies_;
    destination_ = destination + piece.size;
    return on_.calls().cuMemcpyAsync(destination, piece.address, piece.size, stream_);
}

CUresult bounce_copy::finish() noexcept
{
    auto const size = filled_ - sent_;
    if (size == 0)
        return CUDA_SUCCESS;
    ++copies_;
    auto const status = on_.calls().cuMemcpyHtoDAsync(destination_, blocks_->bytes() + sent_, size, stream_);
    destination_ += size;
    sent_ = filled_;
    return status;
}

}  // namespace gpurx::detail::cuda
