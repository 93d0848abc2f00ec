// SPDX-License-Identifier: Apache-2.0
//
// What device_memory handles share: one allocation, its mapping and its dmabuf. One implementation per kind of memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

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
    // Why dmabuf_fd() is -1; defaults if it is not.
    [[nodiscard]] error_code export_error() const noexcept { return export_error_; }
    [[nodiscard]] diagnostics const& why_not_exported() const noexcept { return why_not_exported_; }
    [[nodiscard]] virtual std::string explain() const = 0;

    // rx_buffer::acquire: what a device wrote becomes visible to the CPU, or to work enqueued on `stream` later.
    virtual void acquire(cuda_stream_ref stream) noexcept = 0;
    // True when work enqueued on `stream` cannot be reading this memory any more, so that pages may go back at once.
    [[nodiscard]] virtual bool has_passed(cuda_stream_ref stream) noexcept = 0;

  protected:
    memory_state() = default;

    void place(device_span span, std::size_t page_size) noexcept
    {
        span_ = span;
        page_size_ = page_size;
    }
    // `fd` stays the implementation's; -1 with the reason.
    void set_export(int fd, error_code code, diagnostics why) noexcept
    {
        dmabuf_fd_ = fd;
        export_error_ = code;
        why_not_exported_ = std::move(why);
    }

  private:
    device_span span_;
    std::size_t page_size_ = 0;
    int dmabuf_fd_ = -1;
    error_code export_error_;
    diagnostics why_not_exported_;
};

// One for each kind of memory. Throw system_error.
[[nodiscard]] std::shared_ptr<memory_state> make_host_memory(std::size_t bytes);
[[nodiscard]] std::shared_ptr<memory_state> make_gpu_memory(int ordinal, std::size_t bytes);

}  // namespace gpurx::detail
