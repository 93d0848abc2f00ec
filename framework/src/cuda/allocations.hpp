// SPDX-License-Identifier: Apache-2.0
//
// Allocates memory from the driver, and frees it.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "gpu.hpp"

namespace gpurx::detail::cuda {

// Memory of a GPU for work in any of its contexts: physical memory with its own mapping. If the GPU does not support
// this, memory of the primary context.
class device_block {
  public:
    static constexpr std::size_t unit = std::size_t{2} << 20;

    enum class use : bool {
        kernels,
        rdma,  // a NIC writes it
    };

    // Rounds `bytes` up to whole units. Precondition: the GPU's primary context is current. Throws system_error.
    device_block(gpu const& on, std::size_t bytes, use what_for);
    device_block(device_block const&) = delete;
    device_block& operator=(device_block const&) = delete;
    // Precondition: the same context is current, or the process ends.
    ~device_block() { release(); }

    [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    // Returns whether the memory is of cuMemCreate, not of cuMemAlloc.
    [[nodiscard]] bool is_mapped() const noexcept { return mapped_; }

  private:
    void map(CUmemAllocationProp const& properties);
    void release() noexcept;

    gpu const& on_;
    std::size_t size_;
    CUmemGenericAllocationHandle physical_ = 0;
    bool has_physical_ = false;
    bool reserved_ = false;
    bool mapped_ = false;
    CUdeviceptr address_ = 0;
};

// Pinned host memory of one GPU, for bytes that flows receive on the host. The pool reuses it and keeps it until the
// process ends. Pinning memory is slow, and freeing it waits for all streams of the GPU, which the end of a flow must
// not do.
class pinned_pool {
  public:
    explicit pinned_pool(gpu& owner) : gpu_{owner} {}
    pinned_pool(pinned_pool const&) = delete;
    pinned_pool& operator=(pinned_pool const&) = delete;
    ~pinned_pool() = delete;

    [[nodiscard]] gpu& owner() const noexcept { return gpu_; }
    // Takes a block of `size` bytes, page aligned, that the GPU's kernels reach. If none is free, only this caller
    // waits for the driver. Throws std::bad_alloc.
    [[nodiscard]] CUresult take(std::size_t size, std::byte*& block);
    // Returns a block of take(), of this size, to the pool.
    void put(std::byte* block, std::size_t size) noexcept;

  private:
    struct shelf {
        std::vector<std::byte*> free;
        std::size_t made = 0;
    };

    gpu& gpu_;
    std::mutex mutex_;
    std::map<std::size_t, shelf> of_size_;  // a few sizes, chosen by the library
};

// Destroys the memory. Freeing memory waits for all streams of the GPU. So the thread that watches streams leaves this
// to another thread: all waits depend on it.
void end_memory(memory_state* ending) noexcept;

// Call it at the end of the process, after stop_watching_streams(). Ends all remaining memory. Memory that waits for a
// stream gets one second.
void finish_memory_ends() noexcept;

}  // namespace gpurx::detail::cuda
