// SPDX-License-Identifier: Apache-2.0
//
// Takes memory from the driver, and gives it back.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "gpu.hpp"

namespace gpurx::detail::cuda {

// Memory of a GPU that work in any of its contexts may use: physical memory and a mapping of our own. Where the GPU has
// no such thing, memory of the primary context.
class device_block {
  public:
    static constexpr std::size_t unit = std::size_t{2} << 20;

    enum class use : bool {
        kernels,
        rdma,  // a NIC is to write it
    };

    // `bytes` is rounded up to whole units. The GPU's primary context is current. Throws system_error.
    device_block(gpu const& on, std::size_t bytes, use what_for);
    device_block(device_block const&) = delete;
    device_block& operator=(device_block const&) = delete;
    // The same context is current, or the process ends.
    ~device_block() { release(); }

    [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    // By cuMemCreate, and not by cuMemAlloc.
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

// Pinned host memory of one GPU, for what flows receive on the host. It is used again and kept until the process ends:
// to pin memory is slow, and to free it waits for all streams of the GPU, which no flow's end may.
class pinned_pool {
  public:
    explicit pinned_pool(gpu& owner) : gpu_{owner} {}
    pinned_pool(pinned_pool const&) = delete;
    pinned_pool& operator=(pinned_pool const&) = delete;
    ~pinned_pool() = delete;

    [[nodiscard]] gpu& owner() const noexcept { return gpu_; }
    // So many bytes, page aligned, within the reach of the GPU's kernels. A caller that finds none waits for the
    // driver, and nobody else does. Throws std::bad_alloc.
    [[nodiscard]] CUresult take(std::size_t size, std::byte*& block);
    // What take() gave, of this size.
    void put(std::byte* block, std::size_t size) noexcept;

  private:
    struct shelf {
        std::vector<std::byte*> free;
        std::size_t made = 0;
    };

    gpu& gpu_;
    std::mutex mutex_;
    std::map<std::size_t, shelf> of_size_;  // a few sizes that the library has chosen
};

// Destroys it. To free memory waits for all streams of the GPU, so the thread that watches streams leaves that to
// another one: it sees them pass for everybody.
void end_memory(memory_state* ending) noexcept;

// For the end of the process, behind stop_watching_streams(): what is left ends here. One that waits for a stream is
// given a second.
void finish_memory_ends() noexcept;

}  // namespace gpurx::detail::cuda
