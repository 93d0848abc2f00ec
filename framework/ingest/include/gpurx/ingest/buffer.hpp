// SPDX-License-Identifier: Apache-2.0
//
// buffer: contiguous memory to receive objects, tensors and batches into. No NIC writes it, so it needs no export.
#pragma once

#include <cstddef>
#include <memory>

#include <gpurx/memory.hpp>
#include <gpurx/views.hpp>

namespace gpurx::ingest {

// A handle to shared bytes, which live until the last handle is gone. An empty one has no bytes.
// Thread safety: distinct handles are independent; const members may be called at the same time.
class buffer {
  public:
    buffer() noexcept = default;
    // In host memory: zero pages of the system's, of 2 MiB where it gives them, aligned to 64 bytes at least.
    // Errors: std::bad_alloc.
    [[nodiscard]] static buffer on_host(std::size_t bytes);
    // In memory of the GPU with this CUDA ordinal, aligned to 256 bytes. Not cleared. Errors: as device_memory::on_gpu.
    [[nodiscard]] static buffer on_gpu(int ordinal, std::size_t bytes);

    [[nodiscard]] memory_span span() const noexcept { return span_; }
    [[nodiscard]] std::size_t size() const noexcept { return span_.size(); }
    // The GPU; -1: host memory.
    [[nodiscard]] int gpu() const noexcept { return gpu_; }

  private:
    buffer(std::shared_ptr<void const> owner, memory_span span, int gpu) noexcept
        : owner_{std::move(owner)}, span_{span}, gpu_{gpu}
    {}

    std::shared_ptr<void const> owner_;
    memory_span span_;
    int gpu_ = -1;
};

}  // namespace gpurx::ingest
