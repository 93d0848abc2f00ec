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

// The kernels, and blocks of pinned memory for the descriptors of running gathers.
class gather_engine {
  public:
    // Throws system_error if the kernels cannot be loaded.
    gather_engine(gpu& owner, CUstream fetches);
    gather_engine(gather_engine const&) = delete;
    gather_engine& operator=(gather_engine const&) = delete;
    ~gather_engine() = delete;

    // Launches the kernels once in another context of the GPU, if possible now.
    void prepare(CUcontext context) noexcept;

    // A stream that is not being captured, and its current context.
    struct place {
        CUstream stream;
        context_scope const& scope;
    };

    // Enqueues the copy of the fragments. The GPU must reach all of them; gaps (address 0) are allowed. Precondition:
    // less than 4 GiB. `behind`, if not null, is a point of the stream's context that only the caller uses. On success
    // it is recorded after the copy. The engine allocates its own point only if `behind` is null.
    [[nodiscard]] CUresult launch(std::span<fragment const> fragments, std::uint64_t destination, place const& on,
                                  stream_point* behind = nullptr);
    // The same, and writes the CRC32C of all bytes to `result`. Precondition: no gaps.
    [[nodiscard]] CUresult launch_crc32c(std::span<fragment const> fragments, std::uint64_t destination,
                                         std::uint64_t size, std::uint64_t result, place const& on);

    // Gathers at most bounce_size bytes into pinned memory, on gpu::fetches(). It waits for the gather, and copies the
    // bytes to `destination`. Throws std::bad_alloc.
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

    // A block during the enqueueing of a launch. The launch holds no lock, because a full queue of a stream blocks it.
    class taken_block {
      public:
        // Takes a block and fills it with these pieces.
        taken_block(gather_engine& from, std::span<gather_piece const> pieces, context_scope const& within);
        taken_block(taken_block const&) = delete;
        taken_block& operator=(taken_block const&) = delete;
        ~taken_block();

        // Returns the result; on an error there is no block.
        [[nodiscard]] CUresult status() const noexcept { return status_; }
        [[nodiscard]] block& operator*() const noexcept { return *block_; }
        [[nodiscard]] block* operator->() const noexcept { return block_; }

      private:
        gather_engine& from_;
        block* block_ = nullptr;
        CUresult status_ = CUDA_SUCCESS;
    };

    [[nodiscard]] std::uint32_t piece_size(std::uint64_t batch) const noexcept;
    // Returns the work of each warp; valid until this thread's next call.
    [[nodiscard]] std::span<gather_piece const> plan(std::span<fragment const> fragments,
                                                     std::uint64_t destination) const;
    // Takes a block from number `seen` of the search on; null if there is none. Its work may not have passed.
    [[nodiscard]] block* claim(std::size_t pieces, std::size_t& seen) noexcept;
    void put(block& taken) noexcept;
    // Takes a free block; null after a short search.
    [[nodiscard]] block* find_free(std::size_t pieces, context_scope const& within) noexcept;
    [[nodiscard]] CUresult make_blocks(std::size_t capacity, context_scope const& within, block*& taken);
    [[nodiscard]] CUresult provide_state(block& with) noexcept;
    void upload_tables(device_block const& memory, CUstream stream) const;
    // Launches the kernels without pieces. The CRC kernel needs memory that the stream's context reaches.
    void launch_once(device_block const& memory, CUstream stream, bool reached) const;
    // A kernel, and the number of its blocks that the GPU runs at the same time. With more, the last ones would run
    // alone.
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

    std::mutex mutex_;  // guards the members below, and which blocks are taken; no call of the driver is made under it
    std::vector<CUcontext> prepared_;
    std::vector<block*> blocks_;
    std::size_t next_ = 0;        // start of the search for a free block
    std::size_t crc_states_ = 2;  // given out: the first launch has used two
};

// Copies bytes that only the CPU reaches to a GPU, without waiting for a stream. A driver may copy from unpinned memory
// only when the stream has reached the copy, and the call waits, on a thread that also receives for other flows. So
// this class moves the bytes to pinned blocks, which return to the pool when the stream has passed.
class bounce_copy {
  public:
    // Copies about `expected` bytes on this stream. The stream's context is current within `within`.
    bounce_copy(gpu& on, CUstream stream, context_scope const& within, std::size_t expected) noexcept
        : on_{on}, stream_{stream}, within_{within}, expected_{expected}
    {}
    bounce_copy(bounce_copy const&) = delete;
    bounce_copy& operator=(bounce_copy const&) = delete;
    ~bounce_copy();

    // Takes the bytes. Enqueues one copy for bytes that are adjacent at the destination, when all of them were taken.
    // Without pinned memory it copies directly. Throws std::bad_alloc.
    [[nodiscard]] CUresult copy(fragment piece, std::uint64_t destination);
    // Enqueues the copy of the last bytes.
    [[nodiscard]] CUresult finish() noexcept;
    // Returns the number of commands for the stream, including the one at the end.
    [[nodiscard]] std::size_t commands() const noexcept { return copies_ + (blocks_ != nullptr ? 1 : 0); }

  private:
    struct block;

    // Returns false without pinned memory. Throws std::bad_alloc.
    [[nodiscard]] bool take_block();
    [[nodiscard]] CUresult copy_directly(fragment const& piece, std::uint64_t destination) noexcept;
    static void put_back(void* blocks, error_code) noexcept;

    gpu& on_;
    CUstream stream_;
    context_scope const& within_;
    std::size_t expected_;
    std::size_t copies_ = 0;
    block* blocks_ = nullptr;         // the first is being filled
    stream_point* behind_ = nullptr;  // the point that frees the blocks; exists before the first block
    std::size_t sent_ = 0;            // of the first, as are the next two:
    std::size_t filled_ = 0;
    std::size_t capacity_ = 0;
    std::uint64_t destination_ = 0;  // of the bytes that are not enqueued yet
};

}  // namespace gpurx::detail::cuda
