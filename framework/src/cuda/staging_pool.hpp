// SPDX-License-Identifier: Apache-2.0
//
// Chunks of pinned host memory for the flows that receive for one GPU. Kept until the process ends: to pin memory takes
// as long as to receive it a hundred times.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "gpu.hpp"

namespace gpurx::detail::cuda {

// What one recv can fill: enough that the driver's calls (about 5 us) matter little beside it (60 us and more), little
// enough to stay in a CPU's cache until it has crossed.
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
