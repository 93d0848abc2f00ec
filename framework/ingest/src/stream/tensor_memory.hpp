// SPDX-License-Identifier: Apache-2.0
//
// Memory of frames and batches, on a GPU or the host, and the work on it. Memory of batches is reused.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>

#include <gpurx/cuda_stream.hpp>
#include <gpurx/ingest/buffer.hpp>

#include "batch_layout.hpp"

namespace gpurx::ingest::detail {

// The place of frames and batches, shared by all of them.
class place {
  public:
    // -1: host memory. Throws system_error: errc::no_cuda, the driver's errors.
    explicit place(int gpu);

    [[nodiscard]] int gpu() const noexcept { return gpu_; }
    [[nodiscard]] bool is_gpu() const noexcept { return gpu_ >= 0; }
    // Stream of all work on memory here; none on the host.
    [[nodiscard]] cuda_stream_ref stream() const noexcept { return stream_; }

    // Bytes allocated now, and at most.
    [[nodiscard]] std::uint64_t in_use() const noexcept { return in_use_; }
    [[nodiscard]] std::uint64_t high_water() const noexcept { return high_water_; }

    // Copies at once on the host, and on stream() on a GPU. Throws system_error.
    void copy(memory_span from, memory_span to, std::span<row_copy const> which) const;

  private:
    friend class tensor_memory;
    void count(std::uint64_t bytes) noexcept;

    int gpu_;
    cuda_stream stream_;
    std::atomic<std::uint64_t> in_use_{0};
    std::atomic<std::uint64_t> high_water_{0};
};

// Blocks until all work enqueued on `stream` so far has run.
void finish(cuda_stream_ref stream) noexcept;

class tensor_memory {
  public:
    tensor_memory() noexcept = default;
    // Throws std::bad_alloc, and system_error for the driver's errors.
    tensor_memory(std::shared_ptr<place> where, std::size_t size);
    tensor_memory(tensor_memory&& other) noexcept;
    tensor_memory& operator=(tensor_memory&& other) noexcept;
    // Waits for the place's stream: a GPU may still be writing here.
    ~tensor_memory();

    [[nodiscard]] memory_span span() const noexcept { return bytes_.span(); }

  private:
    std::shared_ptr<place> where_;
    buffer bytes_;
};

// The memory of one batch.
struct block {
    block(std::shared_ptr<place> where, std::size_t size);
    block(block const&) = delete;
    block& operator=(block const&) = delete;
    ~block();

    tensor_memory memory;
    // On a GPU: passes when no work reads the memory any more.
    cuda_stream read_until;
};

// Thread safety: any call at any time.
class batch_pool {
  public:
    // Returns a block to the pool. Work enqueued on `after` so far may still read it. Never fails.
    void give_back(std::unique_ptr<block> memory, cuda_stream_ref after) noexcept;
    // Takes the block that was returned first; null if there is none. On a GPU wait for its read_until before writing
    // to it.
    [[nodiscard]] std::unique_ptr<block> take() noexcept { return take_beyond(0); }
    // The same, if there are more than `count`.
    [[nodiscard]] std::unique_ptr<block> take_beyond(std::size_t count) noexcept;

  private:
    std::mutex mutex_;
    std::deque<std::unique_ptr<block>> blocks_;
    std::deque<std::unique_ptr<block>> spoilt_;  // end of their reads is unknown
};

}  // namespace gpurx::ingest::detail
