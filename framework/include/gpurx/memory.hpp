// SPDX-License-Identifier: Apache-2.0
//
// device_memory: bytes that a NIC may write into, exported as a dmabuf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <gpurx/error.hpp>
#include <gpurx/views.hpp>

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
    // For pages on the NIC larger than the kernel's (rx_session_options::rx_page_size) huge pages are needed.
    // Errors: EINVAL for zero bytes, ENOMEM, and what memfd_create, mmap and the ioctl report.
    [[nodiscard]] static device_memory on_host(std::size_t bytes);
    [[nodiscard]] static device_memory on_host(std::size_t bytes, error_code& code, diagnostics& why);

    // Memory of the GPU with this CUDA ordinal, exported as a dmabuf. `bytes` is rounded up to 2 MiB. Work happens in
    // the GPU's primary context, which the CUDA runtime and its users (PyTorch, JAX) work in too; it is retained until
    // the process ends. The caller's current context stays what it was. Where the driver does not export memory, it is
    // usable by transport copy only: dmabuf_fd() is -1 and explain() says why. Errors: errc::no_cuda (built without
    // CUDA, or no driver on this machine), EINVAL for zero bytes, and what the driver reports, in cuda_category().
    [[nodiscard]] static device_memory on_gpu(int ordinal, std::size_t bytes);
    [[nodiscard]] static device_memory on_gpu(int ordinal, std::size_t bytes, error_code& code, diagnostics& why);

    // Host memory that CUDA pins: for the CPU and for kernels of the GPU, which read it across PCIe. Exported by the
    // driver where it can (CUDA 13.0, and a GPU without memory of its own: not an H100), else as on_host is, and pinned
    // after that. `bytes` is rounded up to the page size.
    // Its kind() is host; rx_buffer::release_after() waits for the stream all the same. Errors: as on_gpu.
    [[nodiscard]] static device_memory on_pinned_host(std::size_t bytes, int ordinal = 0);
    [[nodiscard]] static device_memory on_pinned_host(std::size_t bytes, int ordinal, error_code& code,
                                                      diagnostics& why);

    // Exports GPU memory that somebody else owns: a tensor's block, a cudaMalloc. Only whole pages can be exported,
    // and no byte beside what was given: span() is the largest range of whole host pages inside it, and may begin up
    // to a page after `address` and end up to a page before its end. The owner must not free it earlier than the last
    // user of this memory (rx_buffers too) is gone; `owner`, if any, is held until then, and may be released in a
    // thread of the library.
    //
    // Refused, with the reason in the text: memory of a stream-ordered pool (cudaMallocAsync), managed memory, host
    // memory, a range with a gap, less than one page, and what the driver does not export. Memory that is mapped piece
    // by piece (PyTorch's expandable_segments) is taken if each piece is made for RDMA. Errors: EINVAL, errc::no_cuda,
    // and what the driver reports.
    [[nodiscard]] static device_memory adopt(std::uintptr_t address, std::size_t bytes,
                                             std::shared_ptr<void const> owner = {});
    [[nodiscard]] static device_memory adopt(std::uintptr_t address, std::size_t bytes,
                                             std::shared_ptr<void const> owner, error_code& code, diagnostics& why);

    [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }

    // Preconditions of everything below: valid().
    [[nodiscard]] memory_kind kind() const noexcept;
    [[nodiscard]] std::size_t size() const noexcept;
    [[nodiscard]] memory_span span() const noexcept;
    // The exported dmabuf, or -1 (see on_host). Owned by the memory: do not close it.
    [[nodiscard]] int dmabuf_fd() const noexcept;
    // One line for people: kind, size, page size, exporter, what orders a NIC's writes before a kernel's reads, and
    // what is missing.
    [[nodiscard]] std::string explain() const;

  private:
    friend struct detail::session_access;
    explicit device_memory(std::shared_ptr<detail::memory_state> state) noexcept : state_{std::move(state)} {}

    std::shared_ptr<detail::memory_state> state_;
};

}  // namespace gpurx
