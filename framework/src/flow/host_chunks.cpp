// SPDX-License-Identifier: Apache-2.0
#include "host_chunks.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include <gpurx/error.hpp>

#include "cuda/gpu_work.hpp"

namespace gpurx::detail {

namespace {

// As many bytes as the pages of one receive, and at least half of that where loans of earlier ones are in the chunk.
constexpr std::size_t chunk_size = std::size_t{512} * 4096;
constexpr std::size_t least_room = chunk_size / 2;

}  // namespace

host_chunks::~host_chunks()
{
    if (chunk_ != nullptr)
        let_go(chunk_);
    while (unused_ != nullptr)
        free(std::exchange(unused_, unused_->next));
}

void host_chunks::provide()
{
    if (chunk_ != nullptr && is_good_enough(*chunk_))
        return;
    if (chunk_ != nullptr)
        let_go(std::exchange(chunk_, nullptr));
    {
        std::lock_guard const lock{mutex_};
        if (unused_ != nullptr && is_good_enough(*unused_)) {
            chunk_ = std::exchange(unused_, unused_->next);
            chunk_->holders.store(1, std::memory_order_relaxed);
            return;
        }
    }
    chunk_ = allocate();
}

bool host_chunks::is_good_enough(host_chunk& chunk) const noexcept
{
    // Acquire: whoever gave a loan back has read its bytes.
    if (chunk.used > 0 && chunk.holders.load(std::memory_order_acquire) <= 1)
        chunk.used = 0;
    return chunk.size - chunk.used >= least_room && (chunk.in_reach || !got_bytes_);
}

// Memory that a GPU can reach is pinned, so it is not taken before it is known that host bytes come at all.
host_chunk* host_chunks::allocate()
{
    auto& memory = place_.session().memory();
    auto fresh = std::make_unique<host_chunk>();
    fresh->in_reach = got_bytes_ || memory.ordinal() == no_gpu;
    fresh->bytes = fresh->in_reach ? memory.allocate_host(chunk_size) : memory_state::allocate_plain(chunk_size);
    fresh->size = chunk_size;
    place_.counters.host_memory.add(chunk_size);
    return fresh.release();
}

// A GPU reads them where they are then. From memory that is not pinned its driver copies, and waits for the stream that
// a read was given, on the thread that receives for others too. So it will if no memory can be pinned now.
void host_chunks::move_into_reach(std::size_t received) noexcept
{
    if (chunk_->in_reach)
        return;
    got_bytes_ = true;
    try {
        auto* const pinned = allocate();
        std::memcpy(pinned->bytes.get(), place(), std::min(received, room()));
        let_go(std::exchange(chunk_, pinned));
    } catch (system_error const&) {
    } catch (std::bad_alloc const&) {
    }
}

void host_chunks::share(loan& into, std::size_t size) noexcept
{
    into.host = chunk_;
    // The next receive writes nothing that a gather of these bytes reads.
    chunk_->used += (size + gather_block - 1) / gather_block * gather_block;
    chunk_->holders.fetch_add(1, std::memory_order_relaxed);
    got_bytes_ = true;
}

void host_chunks::let_go(host_chunk* chunk) noexcept
{
    if (chunk->holders.fetch_sub(1, std::memory_order_acq_rel) > 1)
        return;
    if (!chunk->in_reach)
        return free(chunk);  // was only let go because others have to be
    std::lock_guard const lock{mutex_};
    chunk->next = std::exchange(unused_, chunk);
}

void host_chunks::free(host_chunk* chunk) noexcept
{
    place_.counters.host_memory.subtract(chunk->size);
    delete chunk;
}

}  // namespace gpurx::detail
