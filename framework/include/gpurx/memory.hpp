// SPDX-License-Identifier: Apache-2.0
//
// device_memory: bytes that a NIC may write into, exported as a dmabuf.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <gpurx/error.hpp>
#include <gpurx/stream.hpp>

namespace gpurx {

namespace detail {
class memory_state;
struct session_access;
}  // namespace detail

// A handle to shared state: copies name the same bytes. The bytes live until the last handle, session, receiver and
// rx_buffer that uses them is gone, so they may be destroyed in any order.
//
// Thread safety: distinct handles are independent; const members may be called at the same time.
class device_memory {
  public:
    // Empty: valid() is false, and only assignment and destruction are allowed.
    device_memory() noexcept = default;

    // Host memory: a memfd (2 MiB huge pages where the system has enough of them free, else ordinary pages) exported by
    // /dev/udmabuf. `bytes` is rounded up to 2 MiB with huge pages, to the page size without. Where /dev/udmabuf cannot
    // be opened, the memory is usable by transport copy only: dmabuf_fd() is -1 and explain() says why.
    // For pages larger than 4 KiB on the NIC (rx_session_options::rx_page_size) huge pages are needed.
    // Errors: EINVAL for zero bytes, ENOMEM, and what memfd_create, mmap and the ioctl report.
    [[nodiscard]] static device_memory on_host(std::size_t bytes);
    [[nodiscard]] static device_memory on_host(std::size_t bytes, error_code& code, diagnostics& why);

    // GPU memory of the device with this CUDA ordinal, exported for DMA. `bytes` is rounded up to 2 MiB.
    // Errors: errc::no_cuda (built without CUDA, or no driver on this machine). This version never succeeds.
    [[nodiscard]] static device_memory on_gpu(int ordinal, std::size_t bytes);
    [[nodiscard]] static device_memory on_gpu(int ordinal, std::size_t bytes, error_code& code, diagnostics& why);

    [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }

    // Preconditions of everything below: valid().
    [[nodiscard]] memory_kind kind() const noexcept;
    [[nodiscard]] std::size_t size() const noexcept;
    [[nodiscard]] device_span span() const noexcept;
    // The exported dmabuf, or -1 (see on_host). Owned by the memory: do not close it.
    [[nodiscard]] int dmabuf_fd() const noexcept;
    // One line for people: kind, size, page size, exporter, and what is missing.
    [[nodiscard]] std::string explain() const;

  private:
    friend struct detail::session_access;
    explicit device_memory(std::shared_ptr<detail::memory_state> state) noexcept : state_{std::move(state)} {}

    std::shared_ptr<detail::memory_state> state_;
};

}  // namespace gpurx
