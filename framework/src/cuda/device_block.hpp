// SPDX-License-Identifier: Apache-2.0
//
// Memory of a GPU that work in any of its contexts may use: physical memory and a mapping of our own. Where the GPU has
// no such thing, memory of the primary context.
#pragma once

#include <cstddef>

#include "gpu.hpp"

namespace gpurx::detail::cuda {

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

}  // namespace gpurx::detail::cuda
