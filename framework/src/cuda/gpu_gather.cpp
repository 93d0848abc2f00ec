// SPDX-License-Identifier: Apache-2.0
//
// Cuts a gather into launches, and finds out what of it the GPU cannot read: gather_engine gets the rest.
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "gather_engine.hpp"
#include "stream_point.hpp"

namespace gpurx::detail {

namespace cuda {

namespace {

static_assert(gather_block == vector_bytes);

// What one launch takes at most: offsets are of 32 bits.
constexpr std::size_t launch_size = std::size_t{1} << 30;
// The wait for what crosses PCIe, the kernel, and the event behind it; a copy for each gap besides.
constexpr std::size_t commands_per_batch = 3;

// Where addresses lie, as seen from one context of a GPU. Remembers the last answer: fragments of one memory follow
// each other.
class map_of_memory {
  public:
    // The context is current as long as this is asked. About `known` nobody has to be: kernels in this context reach it
    // at the same addresses.
    map_of_memory(gpu const& on, context_scope const& within, memory_span known = {}) noexcept
        : calls_{on.calls()}, ordinal_{on.ordinal()}, context_{within.context()}, known_{known}
    {}

    // The address at which kernels of the GPU find these bytes; 0: at none.
    [[nodiscard]] std::uint64_t find(fragment const& piece)
    {
        if (is_within(piece, known_.address(), known_.address() + known_.size()))
            return piece.address;
        if (!is_within(piece, begin_, end_))
            ask(piece);
        return reachable_ ? piece.address - begin_ + seen_at_ : 0;
    }
    // The other GPUs whose memory was met.
    [[nodiscard]] std::span<int const> others() const noexcept { return others_; }

  private:
    [[nodiscard]] static bool is_within(fragment const& piece, std::uint64_t begin, std::uint64_t end) noexcept
    {
        return piece.address >= begin && piece.size <= end - begin && piece.address - begin <= end - begin - piece.size;
    }

    void ask(fragment const& piece)
    {
        unsigned type = 0;
        int ordinal = no_gpu;
        CUdeviceptr pointer = 0;
        CUcontext context = nullptr;  // of mapped memory, which is of no context, and of a pool's
        std::array attributes{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                              CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_CONTEXT};
        std::array<void*, attributes.size()> values{&type, &ordinal, &pointer, &context};
        auto const known = calls_.cuPointerGetAttributes(attributes.size(), attributes.data(), values.data(),
                                                         piece.address) == CUDA_SUCCESS;
        auto const on_gpu = known && type == CU_MEMORYTYPE_DEVICE;
        auto const of_context = ordinal == ordinal_ && (context == nullptr || context == context_);
        reachable_ = pointer != 0 && ((known && type == CU_MEMORYTYPE_HOST) || (on_gpu && of_context));
        begin_ = piece.address;
        end_ = piece.address + piece.size;
        seen_at_ = pointer;
        if (reachable_)
            extend();
        else if (on_gpu && ordinal >= 0 && ordinal != ordinal_ && std::ranges::find(others_, ordinal) == others_.end())
            others_.push_back(ordinal);
    }

    // To all of the allocation that the range lies in. (Not to RANGE_SIZE, which for mapped memory is what addresses
    // were reserved for.)
    void extend() noexcept
    {
        CUdeviceptr start = 0;
        std::size_t size = 0;
        if (calls_.cuMemGetAddressRange(&start, &size, seen_at_) != CUDA_SUCCESS || start > seen_at_ ||
            size - (seen_at_ - start) < end_ - begin_)
            return;
        begin_ -= seen_at_ - start;
        end_ = begin_ + size;
        seen_at_ = start;
    }

    driver const& calls_;
    int ordinal_;
    CUcontext context_;
    memory_span known_;
    std::uint64_t begin_ = 0;
    std::uint64_t end_ = 0;
    std::uint64_t seen_at_ = 0;
    bool reachable_ = false;
    std::vector<int> others_;
};

// Walks along fragments.
class cursor {
  public:
    explicit cursor(std::span<fragment const> all) noexcept : rest_{all} {}

    [[nodiscard]] bool at_end() const noexcept { return rest_.empty(); }
    // The next piece, of at most `limit` bytes.
    [[nodiscard]] fragment next(std::size_t limit) noexcept
    {
        auto piece = rest_.front();
        piece.address += taken_;
        piece.size = std::min(piece.size - taken_, limit);
        taken_ += piece.size;
        if (taken_ == rest_.front().size) {
            rest_ = rest_.subspan(1);
            taken_ = 0;
        }
        return piece;
    }

  private:
    std::span<fragment const> rest_;
    std::size_t taken_ = 0;
};

// What one launch takes: pieces as the CPU knows them, and as the GPU reads them (address 0: it cannot).
struct batch {
    std::vector<fragment> known;
    std::vector<fragment> seen;
    std::size_t size = 0;
    bool any_gap = false;

    void fill(cursor& from, std::size_t limit, map_of_memory& where)
    {
        known.clear();
        seen.clear();
        any_gap = false;
        for (size = 0; size < limit && !from.at_end();) {
            auto const piece = from.next(limit - size);
            known.push_back(piece);
            seen.push_back({where.find(piece), piece.size, piece.kind});
            any_gap = any_gap || seen.back().address == 0;
            size += piece.size;
        }
    }

    [[nodiscard]] bool any_seen() const noexcept
    {
        return std::ranges::any_of(seen, [](fragment const& piece) { return piece.address != 0; });
    }

    // Without the kernels everything is a gap.
    void make_all_gaps() noexcept
    {
        any_gap = true;
        for (auto& piece : seen)
            piece.address = 0;
    }

    // Calls copy(piece, offset) for each gap until one fails.
    template <class Copy>
    [[nodiscard]] CUresult for_each_gap(Copy copy) const
    {
        std::size_t offset = 0;
        for (std::size_t i = 0; any_gap && i < seen.size(); offset += seen[i++].size)
            if (seen[i].address == 0)
                if (auto const status = copy(known[i], offset); status != CUDA_SUCCESS)
                    return status;
        return CUDA_SUCCESS;
    }
};

// Where a gather is enqueued.
struct target {
    gpu& on;
    CUstream stream;
    context_scope const& scope;

    // For fragments of other GPUs, which are copied by the driver.
    void acquire_from(std::span<int const> others) const
    {
        for (auto const ordinal : others)
            gpu::open(ordinal).acquire(stream, scope);
    }
};

// The point behind a batch of a read, which the pages that it reads wait for, whatever becomes of it. It is there
// before any of the batch is enqueued.
class batch_end {
  public:
    // Null: of no read.
    batch_end(target const& to, stream_point** read_until) noexcept
        : to_{to}, read_until_{read_until}, point_{read_until == nullptr ? nullptr : make_point(to.scope.context())}
    {}
    batch_end(batch_end const&) = delete;
    batch_end& operator=(batch_end const&) = delete;
    ~batch_end()
    {
        if (point_ == nullptr)
            return;
        // What was enqueued before an error is not known.
        if (!recorded_)
            record(*point_, to_.stream, is_captured(to_.stream));
        add(*read_until_, point_);
    }

    [[nodiscard]] bool lacks_memory() const noexcept { return read_until_ != nullptr && point_ == nullptr; }
    [[nodiscard]] stream_point* point() const noexcept { return point_; }
    void note_recorded() noexcept { recorded_ = true; }

  private:
    target const& to_;
    stream_point** read_until_;
    stream_point* point_;
    bool recorded_ = false;
};

// Pinned blocks that wait for a stream are not bounded in a gather of the program's. The bytes that come along with a
// header are as many at most.
constexpr std::size_t largest_detour_of_gather = 64 << 10;

// What the driver copies comes first, so that the point behind the launch is behind all of it. Without an engine it
// copies everything.
CUresult enqueue(target const& to, gather_engine* engine, batch& what, std::uint64_t destination,
                 gather_source const& source)
{
    if (engine == nullptr)
        what.make_all_gaps();
    batch_end end{to, source.read_until};
    if (end.lacks_memory())
        return CUDA_ERROR_OUT_OF_MEMORY;
    auto commands = commands_per_batch;
    bounce_copy bounce{to.on, to.stream, to.scope, what.size};
    auto const detour = source.read_until != nullptr || what.size <= largest_detour_of_gather;
    auto status = what.for_each_gap([&](fragment const& piece, std::size_t offset) {
        if (detour && piece.kind == memory_kind::host)
            return bounce.copy(piece, destination + offset);
        ++commands;
        return to.on.calls().cuMemcpyAsync(destination + offset, piece.address, piece.size, to.stream);
    });
    if (status == CUDA_SUCCESS)
        status = bounce.finish();
    if (status == CUDA_SUCCESS && engine != nullptr)
        status = engine->launch(what.seen, destination, {to.stream, to.scope}, end.point());
    if (status != CUDA_SUCCESS || end.point() == nullptr)
        return status;
    if (engine == nullptr)
        record(*end.point(), to.stream);
    end.note_recorded();
    if (source.backlog != nullptr)
        source.backlog->add(commands + bounce.commands(), *end.point());
    return status;
}

// Kept for the next gather of the thread: one that receives gathers batch after batch.
batch& empty_batch()
{
    thread_local batch kept;
    return kept;
}

std::size_t gather(std::span<fragment const> fragments, memory_span destination, gpu_stream stream,
                   gather_source const& source, error_code& code)
{
    auto& on = gpu::open(stream.ordinal);
    std::optional<context_scope> scope;
    code = enter_usable(on, stream, scope);
    if (code)
        return 0;
    target const to{on, stream.stream.get(), *scope};
    on.acquire(to.stream, to.scope);
    map_of_memory where{on, *scope, scope->context() == on.context() ? source.memory : memory_span{}};
    auto const reached = source.destination_of == nullptr || source.destination_of == scope->context();
    cursor from{fragments};
    auto& what = empty_batch();
    std::size_t placed = 0;
    while (placed < destination.size() && !from.at_end()) {
        what.fill(from, std::min(destination.size() - placed, launch_size), where);
        to.acquire_from(where.others());
        // Not asked for where there is nothing to do for it: that would load the kernels.
        auto* const engine = reached && what.any_seen() ? on.gather_if_any() : nullptr;
        code = error_of(enqueue(to, engine, what, destination.address() + placed, source));
        if (code)
            break;
        placed += what.size;
    }
    return placed;
}

std::size_t gather_crc32c(std::span<fragment const> fragments, memory_span destination, std::uintptr_t crc,
                          gpu_stream stream, error_code& code)
{
    auto& on = gpu::open(stream.ordinal);
    auto& engine = on.gather();
    std::optional<context_scope> scope;
    code = enter_usable(on, stream, scope);
    if (code)
        return 0;
    auto* const handle = stream.stream.get();
    on.acquire(handle, *scope);
    map_of_memory where{on, *scope};
    cursor from{fragments};
    auto& what = empty_batch();
    what.fill(from, std::min<std::size_t>(destination.size(), std::numeric_limits<std::uint32_t>::max()), where);
    auto const result = where.find({crc, sizeof(std::uint32_t), memory_kind::device});
    auto const reached = where.find({destination.address(), what.size, memory_kind::device}) != 0;
    if (what.any_gap || !reached || result == 0 || !from.at_end()) {
        code = errc::bad_destination;
        return 0;
    }
    code = error_of(engine.launch_crc32c(what.seen, destination.address(), what.size, result, {handle, *scope}));
    return code ? 0 : what.size;
}

// Without kernels.
CUresult fetch(gpu& on, batch const& what, std::byte* destination)
{
    auto* const stream = on.fetches();
    auto const status = what.for_each_gap([&](fragment const& piece, std::size_t offset) {
        if (piece.kind == memory_kind::host)
            return CUDA_SUCCESS;
        return on.calls().cuMemcpyDtoHAsync(destination + offset, piece.address, piece.size, stream);
    });
    // After an error, too: what was enqueued before it writes to the caller's bytes.
    auto const finished = on.calls().cuStreamSynchronize(stream);
    return status == CUDA_SUCCESS ? finished : status;
}

// What is enqueued on `stream`, which is gpu::fetches(), from now on comes after what is visible now, and after
// `after`. That is waited for here: others use the same stream, and are not to wait for it.
void begin_fetch(target const& to, cuda_stream_ref const* after)
{
    stream_point* points = nullptr;
    if (after != nullptr) {
        spare_point spare;
        spare.provide();
        mark(points, {.ordinal = to.on.ordinal(), .stream = *after}, spare);
    }
    wait_for(points);
    to.on.acquire(to.stream, to.scope);
}

std::size_t copy(std::span<fragment const> fragments, std::span<std::byte> destination, int ordinal,
                 cuda_stream_ref const* after, error_code& code)
{
    auto& on = gpu::open(ordinal);
    auto* const engine = on.gather_if_any();
    context_scope const scope{on};
    if (scope.status() != CUDA_SUCCESS) {
        code = error_of(scope.status());
        return 0;
    }
    target const to{on, on.fetches(), scope};
    begin_fetch(to, after);
    map_of_memory where{on, scope};
    cursor from{fragments};
    auto& what = empty_batch();
    std::size_t placed = 0;
    while (placed < destination.size() && !from.at_end()) {
        what.fill(from, std::min(destination.size() - placed, gather_engine::bounce_size), where);
        to.acquire_from(where.others());
        auto status = CUDA_SUCCESS;
        if (engine != nullptr && what.any_seen())
            status = engine->bring(what.seen, destination.subspan(placed, what.size), to.scope);
        else
            what.make_all_gaps();
        if (status == CUDA_SUCCESS && what.any_gap)
            status = fetch(on, what, destination.data() + placed);
        if (status != CUDA_SUCCESS) {
            code = error_of(status);
            return placed;
        }
        static_cast<void>(what.for_each_gap([&](fragment const& piece, std::size_t offset) {
            if (piece.kind == memory_kind::host)
                std::memcpy(destination.data() + placed + offset, reinterpret_cast<std::byte const*>(piece.address),
                            piece.size);
            return CUDA_SUCCESS;
        }));
        placed += what.size;
    }
    code.clear();
    return placed;
}

}  // namespace

}  // namespace cuda

void prepare_gather(gpu_stream const& on) noexcept
{
    error_code ignored;
    static_cast<void>(cuda::reporting(ignored, [&] {
        cuda::gpu::open(on.ordinal).prepare(on.context);
        return true;
    }));
}

std::size_t gather_on_gpu(std::span<fragment const> fragments, memory_span destination, gpu_stream on,
                          gather_source const& from, error_code& code) noexcept
{
    return cuda::reporting(code, [&] { return cuda::gather(fragments, destination, on, from, code); });
}

std::size_t gather_crc32c_on_gpu(std::span<fragment const> fragments, memory_span destination, std::uintptr_t crc,
                                 gpu_stream on, error_code& code) noexcept
{
    return cuda::reporting(code, [&] { return cuda::gather_crc32c(fragments, destination, crc, on, code); });
}

std::size_t copy_from_gpu(std::span<fragment const> fragments, std::span<std::byte> destination, int ordinal,
                          cuda_stream_ref const* after, error_code& code) noexcept
{
    return cuda::reporting(code, [&] { return cuda::copy(fragments, destination, ordinal, after, code); });
}

}  // namespace gpurx::detail
