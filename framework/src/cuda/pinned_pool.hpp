// SPDX-License-Identifier: Apache-2.0
//
// Pinned host memory of one GPU, for what flows receive on the host. It is used again and kept until the process ends:
// to pin memory is slow, and to free it waits for all streams of the GPU, which no flow's end may.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "gpu.hpp"

namespace gpurx::detail::cuda {

class pinned_pool {
  public:
    explicit pinned_pool(gpu& owner) : gpu_{owner} {}
    pinned_pool(pinned_pool const&) = delete;
    pinned_pool& operator=(pinned_pool const&) = delete;
    ~pinned_pool() = delete;

    [[nodiscard]] gpu& owner() const noexcept { return gpu_; }
    // So many bytes, page aligned, within the reach of the GPU's kernels. Who finds none waits for the driver, and
    // nobody else does. Throws std::bad_alloc.
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

}  // namespace gpurx::detail::cuda
