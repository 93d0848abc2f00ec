// SPDX-License-Identifier: Apache-2.0
//
// Stages in pinned memory of the pool what flows receive for a GPU.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <mutex>
#include <utility>

#include "allocations.hpp"
#include "stream_point.hpp"

namespace gpurx::detail {

namespace {

// What one recv can fill: enough that the driver's few calls matter little beside it, little enough to stay in a CPU's
// cache until it has crossed. One recv brings some 170 KiB over loopback, at full speed, beside an H200.
constexpr std::size_t staging_chunk_size = 512 << 10;
// Two would do for a steady sender; the third is for what is uneven.
constexpr std::size_t chunks_per_flow = 3;
// Less than this at the end of a chunk is not worth a call.
constexpr std::size_t least_staging_room = 64 << 10;
// The copy, and the event behind it.
constexpr std::size_t commands_per_copy = 2;

}  // namespace

struct staging::chunk {
    enum class state : std::uint8_t {
        none,       // not taken from the pool yet
        idle,       // may be filled
        under_way,  // `sent` has not passed, as far as is known
        awaited,    // the thread that watches streams has `sent`, and will call arrived()
    };

    std::byte* bytes = nullptr;
    state at = state::none;
    stream_point* sent = nullptr;
    std::shared_ptr<ring> keeps;  // while awaited
};

// The chunks of one flow. Outlives it while one of them is awaited.
struct staging::ring {
    explicit ring(cuda::pinned_pool& of) : pool{of} {}
    ring(ring const&) = delete;
    ring& operator=(ring const&) = delete;
    ~ring()
    {
        for (auto const& each : chunks)
            if (each.bytes != nullptr)
                pool.put(each.bytes, staging_chunk_size);
    }

    cuda::pinned_pool& pool;
    std::mutex mutex;  // guards what follows
    std::array<chunk, chunks_per_flow> chunks;
    int event = -1;  // of who waits for room
};

void staging::arrived(void* argument, error_code) noexcept
{
    auto& done = *static_cast<chunk*>(argument);
    auto const keeps = std::move(done.keeps);
    std::scoped_lock const lock{keeps->mutex};
    done.at = chunk::state::idle;
    if (keeps->event >= 0) {
        std::uint64_t const one = 1;
        [[maybe_unused]] auto const written = ::write(std::exchange(keeps->event, -1), &one, sizeof one);
    }
}

staging::staging(int ordinal)
    : ring_{std::make_shared<ring>(cuda::gpu::open(ordinal).pinned())}, own_{ring_->pool.owner().copies()}
{}

staging::~staging()
{
    send_off();
    await_all(-1);
}

std::span<std::byte> staging::room(gpu_stream on, error_code& code)
{
    code.clear();
    assert(held_ == 0 || is_for(on));
    if (filling_ != nullptr && (on != on_ || staging_chunk_size - filled_ < least_staging_room))
        send_off();
    if (filling_ == nullptr) {
        filling_ = find_idle(code);
        filled_ = 0;
        on_ = on;
    }
    if (filling_ == nullptr)
        return {};
    spare_.provide();
    spare_for_break_.provide();
    return {filling_->bytes + filled_, staging_chunk_size - filled_};
}

error_code staging::copy(std::uintptr_t address, std::size_t size, stream_backlog* backlog) noexcept
{
    error_code code;
    if (held_ > 0 && (address != held_for_ + held_ || backlog != backlog_))
        code = flush(spare_for_break_);
    if (held_ == 0)
        held_for_ = address;
    backlog_ = backlog;
    held_ += size;
    filled_ += size;
    if (!code && staging_chunk_size - filled_ < least_staging_room)
        code = flush();
    return code;
}

error_code staging::flush() noexcept
{
    return flush(spare_);
}

error_code staging::flush(spare_point& spare) noexcept
{
    if (held_ == 0)
        return {};
    auto const size = std::exchange(held_, 0);
    auto const& calls = ring_->pool.owner().calls();
    CUcontext context = nullptr;
    auto status = cuda::context_of(calls, on_, context);
    if (status == CUDA_SUCCESS) {
        cuda::context_scope const scope{calls, context};
        status = scope.status() != CUDA_SUCCESS
                     ? scope.status()
                     : calls.cuMemcpyHtoDAsync(held_for_, filling_->bytes + filled_ - size, size, on_.stream.get());
    }
    // The program's stream may be gone when the chunk is full.
    if (on_.stream == own_)
        ring_->pool.owner().note_copy();
    else
        mark(filling_->sent, on_, spare);
    if (backlog_ != nullptr && filling_->sent != nullptr)
        backlog_->add(commands_per_copy, *filling_->sent);
    return cuda::error_of(status);
}

bool staging::notify(int event) noexcept
{
    return await_all(event);
}

void staging::send_off() noexcept
{
    if (filling_ == nullptr)
        return;
    if (filled_ > 0 && on_.stream == own_)
        mark_own();
    std::scoped_lock const lock{ring_->mutex};
    std::exchange(filling_, nullptr)->at = chunk::state::under_way;
}

// A program that has acquired the last loan has had an event recorded behind its copy.
void staging::mark_own() noexcept
{
    auto* const behind = ring_->pool.owner().hold_point_of_copies();
    if (behind != nullptr) {
        filling_->sent = cuda::stand_in_for(*behind);
        cuda::discard(behind);
    }
    if (filling_->sent == nullptr)
        mark(filling_->sent, on_, spare_);
}

bool staging::is_idle(chunk& each) noexcept
{
    if (each.at == chunk::state::under_way && has_passed(each.sent))
        each.at = chunk::state::idle;
    return each.at == chunk::state::idle;
}

bool staging::await_all(int event) noexcept
{
    std::array<chunk*, chunks_per_flow> awaited{};
    {
        std::scoped_lock const lock{ring_->mutex};
        auto const idle = std::ranges::count_if(ring_->chunks, is_idle);
        if (event >= 0 && idle > 0)
            return false;
        ring_->event = event;
        for (std::size_t i = 0; i < awaited.size(); ++i) {
            auto& each = ring_->chunks[i];
            if (each.at != chunk::state::under_way)
                continue;
            each.at = chunk::state::awaited;
            each.keeps = ring_;
            awaited[i] = &each;
        }
    }
    // Without the mutex: this may call arrived() at once.
    for (auto* const each : awaited)
        if (each != nullptr)
            when_passed(std::exchange(each->sent, nullptr), arrived, each, waiting_for::stream);
    return true;
}

staging::chunk* staging::find_idle(error_code& code)
{
    chunk* fresh = nullptr;
    {
        std::scoped_lock const lock{ring_->mutex};
        for (auto& each : ring_->chunks) {
            if (is_idle(each))
                return &each;
            if (each.at == chunk::state::none)
                fresh = &each;
        }
    }
    if (fresh == nullptr)
        return nullptr;
    // Without the mutex: nobody else looks at a chunk that was not taken yet.
    std::byte* bytes = nullptr;
    if (auto const status = ring_->pool.take(staging_chunk_size, bytes); status != CUDA_SUCCESS) {
        code = cuda::error_of(status);
        return nullptr;
    }
    std::scoped_lock const lock{ring_->mutex};
    fresh->bytes = bytes;
    fresh->at = chunk::state::idle;
    return fresh;
}

gpu_stream copy_stream_of(int ordinal, error_code& code) noexcept
{
    code.clear();
    return cuda::reporting(code, [&] {
        auto& on = cuda::gpu::open(ordinal);
        return gpu_stream{.ordinal = ordinal, .stream = on.copies(), .context = on.context()};
    });
}

std::unique_ptr<staging> make_staging(int ordinal, error_code& code) noexcept
{
    code.clear();
    return cuda::reporting(code, [&] { return std::make_unique<staging>(ordinal); });
}

}  // namespace gpurx::detail
