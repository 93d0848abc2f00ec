// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Contiguous memory for objects, tensors and batches.
#pragma once

#include <cstddef>
#include <memory>

#include <gpurx/memory.hpp>
#include <gpurx/views.hpp>

namespace gpurx::ingest {

/// @brief A handle to shared bytes of host or GPU memory.
///
/// The bytes live until their last handle is destroyed.
///
/// No NIC writes these bytes, so the memory is not exported. An empty buffer has no bytes.
///
/// @par Thread safety
/// Distinct handles are independent. Threads may call const members of one handle at the same time.
class buffer {
  public:
    /// @brief Constructs an empty buffer.
    buffer() noexcept = default;
    /// @brief Allocates host memory, which the system sets to zero.
    ///
    /// The bytes of a buffer of at least 2 MiB are aligned to 2 MiB, and their pages have that size if the system
    /// provides such pages (`/sys/kernel/mm/transparent_hugepage/enabled`). Other bytes are aligned to a page.
    ///
    /// @param bytes Size of the buffer.
    /// @throws std::bad_alloc If memory runs out.
    [[nodiscard]] static buffer on_host(std::size_t bytes);
    /// @brief Allocates GPU memory, aligned to 256 bytes and not cleared.
    /// @param ordinal CUDA ordinal of the GPU.
    /// @param bytes Size of the buffer.
    /// @throws system_error The errors of device_memory::on_gpu().
    [[nodiscard]] static buffer on_gpu(int ordinal, std::size_t bytes);

    /// @brief Returns the bytes.
    [[nodiscard]] memory_span span() const noexcept { return span_; }
    /// @brief Returns the size in bytes.
    [[nodiscard]] std::size_t size() const noexcept { return span_.size(); }
    /// @brief Returns the CUDA ordinal of the GPU; -1 for host memory.
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
