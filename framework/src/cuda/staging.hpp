// SPDX-License-Identifier: Apache-2.0
//
// Chunks of pinned host memory for the flows that receive for one GPU. Kept until the process ends: to pin memory is
// slow, and may wait for the GPU.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "gpu.hpp"

namespace gpurx::detail::cuda {

// What one recv can fill: enough that the driver's few calls matter little beside it, little enough to stay in a CPU's
// cache until it has crossed. An estimate, not tuned on a GPU yet.
inline constexpr std::size_t chunk_size = 512 << 10;

class staging_pool {
  public:
    explicit staging_pool(gpu& owner) : gpu_{owner} {}
    staging_pool(staging_pool const&) = delete;
    staging_pool& operator=(staging_pool const&) = delete;
    ~staging_pool() = delete;

    [[nodiscard]] gpu& owner() const noexcept { return gpu_; }
    // chunk_size bytes, page aligned.
    [[nodiscard]] CUresult take(std::byte*& chunk);
    void put(std::byte* chunk) noexcept;

  private:
    gpu& gpu_;
    std::mutex mutex_;
    std::vector<std::byte*> free_;
    std::size_t made_ = 0;
};

}  // namespace gpurx::detail::cuda
