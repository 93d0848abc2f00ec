// SPDX-License-Identifier: Apache-2.0
//
// Enqueues a gather on one GPU: the kernels, and copies of bytes that they cannot read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "allocations.hpp"
#include "gather_plan.hpp"
#include "gpu.hpp"

namespace gpurx::detail::cuda {

// The kernels, and blocks of pinned memory for the descriptors of what is under way.
class gather_engine {
  public:
    // Throws system_error if the kernels cannot be loaded.
    gather_engine(gpu& owner, CUstream fetches);
    gather_engine(gather_engine const&) = delete;
    gather_engine& operator=(gather_engine const&) = delete;
    ~gather_engine() = delete;

    // Launches the kernels once in another context of the GPU's, if that can be done now.
    void prepare(CUcontext context) noexcept;

    // A stream that is not being captured, and its context, current.
    struct place {
        CUstream stream;
        context_scope const& scope;
    };

    // Enqueues the copy of the fragments, all within the GPU's reach but for gaps (address 0). Precondition: less than
    // 4 GiB. `behind`, if not null, is of the stream's context and nobody else's yet, and is recorded behind it if all
    // goes well; it is not without memory for its own.
    [[nodiscard]] CUresult launch(std::span<fragment const> fragments, std::uint64_t destination, place const& on,
                                  stream_point* behind = nullptr);
    // And the CRC32C of all of it to `result`. Precondition: no gaps.
    [[nodiscard]] CUresult launch_crc32c(std::span<fragment const> fragments, std::uint64_t destination,
                                         std::uint64_t size, std::uint64_t result, place const& on);

    // Gathers into memory of its own, on gpu::fetches(), waits, and copies on to `destination`:
    // at most bounce_size bytes.
    static constexpr std::size_t bounce_size = 256 << 10;
    [[nodiscard]] CUresult bring(std::span<fragment const> fragments, std::span<std::byte> destination,
                                 context_scope const& within);

  private:
    // Descriptors of one launch, in pinned memory; and the state of its CRC, on the GPU.
    struct block {
        gather_piece* pieces = nullptr;
        std::size_t capacity = 0;
        gather_crc_state* state = nullptr;
        bool taken = false;
        stream_point* used = nullptr;  // null, and not taken: free
    };

    // A block while a launch is enqueued, which is done without a lock: it waits where a stream's queue is full.
    class taken_block {
      public:
        // With these pieces in it.
        taken_block(gather_engine& from, std::span<gather_piece const> pieces, context_scope const& within);
        taken_block(taken_block const&) = delete;
        taken_block& operator=(taken_block const&) = delete;
        ~taken_block();

        // With an error there is no block.
        [[nodiscard]] CUresult status() const noexcept { return status_; }
        [[nodiscard]] block& operator*() const noexcept { return *block_; }
        [[nodiscard]] block* operator->() const noexcept { return block_; }

      private:
        gather_engine& from_;
        block* block_ = nullptr;
        CUresult status_ = CUDA_SUCCESS;
    };

    [[nodiscard]] std::uint32_t piece_size(std::uint64_t batch) const noexcept;
    // What each warp is to copy; valid until this thread asks again.
    [[nodiscard]] std::span<gather_piece const> plan(std::span<fragment const> fragments,
                                                     std::uint64_t destination) const;
    // One that is free, if it is soon found; with the mutex.
    [[nodiscard]] block* find_free(std::size_t pieces, context_scope const& within) noexcept;
    [[nodiscard]] CUresult make_blocks(std::size_t capacity, context_scope const& within, block*& taken);
    [[nodiscard]] CUresult provide_state(block& with) noexcept;
    void upload_tables(device_block const& memory, CUstream stream) const;
    // On nothing; the one with a CRC needs memory that the stream's context reaches.
    void launch_once(device_block const& memory, CUstream stream, bool reached) const;
    // A kernel, and how many of its blocks the GPU runs at once: with more, the last would run by themselves.
    struct kernel {
        CUfunction function = nullptr;
        unsigned blocks = 1;
    };

    [[nodiscard]] kernel find(CUlibrary library, char const* name) const;
    [[nodiscard]] CUresult run(kernel const& which, block& with, std::size_t count, std::uint64_t destination,
                               gather_crc_arguments* crc, place const& on, stream_point* behind);

    gpu& gpu_;
    kernel plain_;
    kernel with_crc_;
    device_block* crc_memory_ = nullptr;  // the tables, and a state for each block that had a CRC
    CUstream fetches_;
    std::byte* bounce_ = nullptr;

    std::mutex bounce_mutex_;
    std::mutex mutex_;  // guards what follows
    std::vector<CUcontext> prepared_;
    std::vector<block*> blocks_;
    std::size_t next_ = 0;        // where to look for a free one
    std::size_t crc_states_ = 2;  // given out: the first launch has used two
};

// Brings bytes that only the CPU reaches to a GPU, and waits for no stream. From memory that is not pinned a driver may
// copy only when the stream has got there, and the call waits: on a thread that receives for other flows, too. So the
// bytes are moved to pinned blocks, which come back when the stream has passed.
class bounce_copy {
  public:
    // On this stream, whose context is current within `within`. About `expected` bytes.
    bounce_copy(gpu& on, CUstream stream, context_scope const& within, std::size_t expected) noexcept
        : on_{on}, stream_{stream}, within_{within}, expected_{expected}
    {}
    bounce_copy(bounce_copy const&) = delete;
    bounce_copy& operator=(bounce_copy const&) = delete;
    ~bounce_copy();

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
