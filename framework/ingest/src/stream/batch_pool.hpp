// SPDX-License-Identifier: Apache-2.0
//
// The memory of batches, used again.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

#include <gpurx/cuda_stream.hpp>

#include "tensor_memory.hpp"

namespace gpurx::ingest::detail {

// The memory of one batch.
struct block {
    block(std::shared_ptr<place> where, std::size_t size);
    block(block const&) = delete;
    block& operator=(block const&) = delete;
    ~block();

    tensor_memory memory;
    // On a GPU: has passed when nobody reads the memory any more.
    cuda_stream read_until;
};

// Thread safety: any call at any time.
class batch_pool {
  public:
    // Where work enqueued on `after` so far may read it. Never fails.
    void give_back(std::unique_ptr<block> memory, cuda_stream_ref after) noexcept;
    // The one that has been back longest; null: none is. On a GPU wait for its read_until before writing to it.
    [[nodiscard]] std::unique_ptr<block> take() noexcept { return take_beyond(0); }
    // The same, if there are more than `count`.
    [[nodiscard]] std::unique_ptr<block> take_beyond(std::size_t count) noexcept;

  private:
    std::mutex mutex_;
    std::deque<std::unique_ptr<block>> blocks_;
    std::deque<std::unique_ptr<block>> spoilt_;  // nobody can say until when they are read
};

}  // namespace gpurx::ingest::detail
