// SPDX-License-Identifier: Apache-2.0
//
// What device_memory handles share: one allocation, its mapping and its dmabuf. One implementation per kind of memory.
#pragma once

#include <cstddef>
#include <string>

#include <gpurx/error.hpp>
#include <gpurx/stream.hpp>

namespace gpurx::detail {

class memory_state {
  public:
    memory_state(memory_state const&) = delete;
    memory_state& operator=(memory_state const&) = delete;
    virtual ~memory_state() = default;

    [[nodiscard]] device_span span() const noexcept { return span_; }
    // Bytes that are certain to be physically contiguous and aligned: 4 KiB, or 2 MiB with huge pages.
    [[nodiscard]] std::size_t page_size() const noexcept { return page_size_; }
    // -1: not exported. The owner is this object.
    [[nodiscard]] int dmabuf_fd() const noexcept { return dmabuf_fd_; }
    // Why dmabuf_fd() is -1; default if it is not.
    [[nodiscard]] diagnostics const& why_not_exported() const noexcept { return why_not_exported_; }
    [[nodiscard]] virtual std::string explain() const = 0;

    // rx_buffer::acquire: what a device wrote becomes visible to the CPU, or to work enqueued on `stream` later.
    virtual void acquire(cuda_stream_ref stream) noexcept = 0;
    // True when work enqueued on `stream` cannot be reading this memory any more, so that pages may go back at once.
    [[nodiscard]] virtual bool has_passed(cuda_stream_ref stream) noexcept = 0;

  protected:
    memory_state() = default;

    device_span span_;
    std::size_t page_size_ = 0;
    int dmabuf_fd_ = -1;
    diagnostics why_not_exported_;
};

}  // namespace gpurx::detail
