// SPDX-License-Identifier: Apache-2.0
//
// How bytes that only the CPU reaches come to a GPU without anybody's waiting for the stream. From memory that is not
// pinned a driver may copy only when the stream has got there, and the call waits: on a thread that receives for other
// flows, too. So the bytes are moved to pinned blocks, which come back when the stream has passed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu.hpp"

namespace gpurx::detail::cuda {

class pinned_detour {
  public:
    // On this stream, whose context is current within `within`. About `expected` bytes.
    pinned_detour(gpu& on, CUstream stream, context_scope const& within, std::size_t expected) noexcept
        : on_{on}, stream_{stream}, within_{within}, expected_{expected}
    {}
    pinned_detour(pinned_detour const&) = delete;
    pinned_detour& operator=(pinned_detour const&) = delete;
    ~pinned_detour();

    // Takes the bytes, and enqueues the copy of what is adjacent at the destination when all of it is there. Without
    // pinned memory they take the direct way. Throws std::bad_alloc.
    [[nodiscard]] CUresult copy(fragment piece, std::uint64_t destination);
    // Enqueues what was taken last.
    [[nodiscard]] CUresult finish() noexcept;
    // That it gives the stream, with the one at its end.
    [[nodiscard]] std::size_t commands() const noexcept { return copies_ + (blocks_ != nullptr ? 1 : 0); }

  private:
    struct block;

    // False: there is no pinned memory. Throws std::bad_alloc.
    [[nodiscard]] bool take_block();
    [[nodiscard]] CUresult copy_directly(fragment const& piece, std::uint64_t destination) noexcept;
    static void put_back(void* blocks, error_code) noexcept;

    gpu& on_;
    CUstream stream_;
    context_scope const& within_;
    std::size_t expected_;
    std::size_t copies_ = 0;
    block* blocks_ = nullptr;         // the first is being filled
    stream_point* behind_ = nullptr;  // that they will wait for; there before any of them
    std::size_t sent_ = 0;            // of the first, as is:
    std::size_t filled_ = 0;
    std::size_t capacity_ = 0;
    std::uint64_t destination_ = 0;  // of what is not sent
};

}  // namespace gpurx::detail::cuda
