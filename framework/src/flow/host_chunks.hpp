// SPDX-License-Identifier: Apache-2.0
//
// Host memory that one flow of a NIC receives bytes into that miss its device memory: linear payload, a missed rule. A
// chunk serves several receives and goes back with the last loan of its bytes.
#pragma once

#include <cstddef>
#include <mutex>

#include "loan.hpp"
#include "session/session_state.hpp"

namespace gpurx::detail {

class host_chunks {
  public:
    explicit host_chunks(flow_place& place) noexcept : place_{place} {}
    host_chunks(host_chunks const&) = delete;
    host_chunks& operator=(host_chunks const&) = delete;
    // No loan of it is left.
    ~host_chunks();

    // ---- called by the receiving side ----

    // Makes room for the next receive. Throws system_error, std::bad_alloc.
    void provide();
    // Where the next receive may write, and how much. Precondition: provide() was called.
    [[nodiscard]] std::byte* place() const noexcept { return chunk_->bytes.get() + chunk_->used; }
    [[nodiscard]] std::size_t room() const noexcept { return chunk_->size - chunk_->used; }
    // Before the first of `received` bytes that came there are described.
    void move_into_reach(std::size_t received) noexcept;
    // Notes that `into` has the next `size` bytes.
    void share(loan& into, std::size_t size) noexcept;

    // ---- called from any thread ----

    // One holder fewer; with the last the chunk waits to be used again.
    void let_go(host_chunk* chunk) noexcept;

  private:
    [[nodiscard]] bool is_good_enough(host_chunk& chunk) const noexcept;
    [[nodiscard]] host_chunk* allocate();
    void free(host_chunk* chunk) noexcept;

    flow_place& place_;
    host_chunk* chunk_ = nullptr;  // of the next receive
    bool got_bytes_ = false;       // as some flows never do
    std::mutex mutex_;             // guards what follows
    host_chunk* unused_ = nullptr;
};

}  // namespace gpurx::detail
