// SPDX-License-Identifier: Apache-2.0
//
// Tokens on their way back to the kernel, gathered into one batch that a single setsockopt takes. Pure, of fixed size
// (giving back must not allocate), and guarded by its owner's mutex.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "devmem_uapi.hpp"
#include "loan.hpp"

namespace gpurx::detail {

// What one setsockopt(SO_DEVMEM_DONTNEED) takes.
struct token_batch {
    std::array<uapi::dmabuf_token, uapi::max_dontneed_entries> tokens;  // not initialized: only `entries` mean anything
    std::size_t entries = 0;
    std::size_t pages = 0;

    [[nodiscard]] std::span<uapi::dmabuf_token const> used() const noexcept { return {tokens.data(), entries}; }
};

class release_batch {
  public:
    // Takes as much of `range` from its front as fits into the batch, joining it to the last entry where it can.
    // Returns what did not fit; its count is 0 if all did.
    [[nodiscard]] token_range add(token_range range) noexcept;

    [[nodiscard]] bool empty() const noexcept { return batch_.entries == 0; }
    // Copies the batch out and begins a new one.
    void take(token_batch& into) noexcept;

  private:
    bool join_last(token_range range) noexcept;

    token_batch batch_;
};

}  // namespace gpurx::detail
