// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory that a NIC may write into, exported as a dmabuf: device_memory.
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

/// @brief A handle to memory that a NIC may write into.
///
/// Copies of a handle name the same bytes.
///
/// @par Lifetime
/// The bytes live until the last handle, session, receiver and rx_buffer that uses them is gone. These may be destroyed
/// in any order.
///
/// @par Thread safety
/// Distinct handles are independent. Const members may be called at the same time.
class device_memory {
  public:
    /// @brief Constructs an empty handle.
    ///
    /// valid() is false. Only assignment and destruction are allowed.
    device_memory() noexcept = default;

    /// @brief Allocates host memory, exported by `/dev/udmabuf`.
    ///
    /// The memory is a memfd. It has huge pages of 2 MiB if the system has enough free huge pages, otherwise ordinary
    /// pages. Pages at the NIC that are larger than the kernel's need huge pages (`rx_session_options::rx_page_size`).
    ///
    /// If `/dev/udmabuf` cannot be opened, only transport `copy` can use the memory. dmabuf_fd() is then -1, and
    /// explain() tells the reason.
    ///
    /// @param bytes Size. The function rounds it up to 2 MiB with huge pages, otherwise to the page size.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - `EINVAL`: `bytes` is 0.
    /// - `ENOMEM`.
    /// - The errors of `memfd_create`, `mmap` and the ioctl.
    [[nodiscard]] static device_memory on_host(std::size_t bytes);
    /// @brief Sets `code` and `why` instead of throwing; otherwise as the overload above.
    [[nodiscard]] static device_memory on_host(std::size_t bytes, error_code& code, diagnostics& why);

    /// @brief Allocates GPU memory, exported as a dmabuf.
    ///
    /// The function works in the GPU's primary context, which the CUDA runtime and its users (PyTorch, JAX) share. The
    /// context is retained until the process ends. The caller's current context does not change.
    ///
    /// If the driver does not export the memory, only transport `copy` can use it. dmabuf_fd() is then -1, and
    /// explain() tells the reason.
    ///
    /// @param ordinal CUDA ordinal of the GPU.
    /// @param bytes Size. The function rounds it up to 2 MiB.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - errc::no_cuda: the library was built without CUDA, or the machine has no driver.
    /// - `EINVAL`: `bytes` is 0.
    /// - The driver's errors, in cuda_category().
    [[nodiscard]] static device_memory on_gpu(int ordinal, std::size_t bytes);
    /// @brief Sets `code` and `why` instead of throwing; otherwise as the overload above.
    [[nodiscard]] static device_memory on_gpu(int ordinal, std::size_t bytes, error_code& code, diagnostics& why);

    /// @brief Allocates pinned host memory, for the CPU and for GPU kernels.
    ///
    /// CUDA pins the memory, and a GPU reads it across PCIe. The CUDA driver exports the memory if it can: with CUDA
    /// 13.0 and a GPU without its own memory, so not with an H100. Otherwise the function exports the memory as
    /// on_host() does, then pins it.
    ///
    /// kind() is `host`, but rx_buffer::release_after() waits for the stream.
    ///
    /// @param bytes Size. The function rounds it up to the page size.
    /// @param ordinal CUDA ordinal of the GPU.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// As on_gpu().
    [[nodiscard]] static device_memory on_pinned_host(std::size_t bytes, int ordinal = 0);
    /// @brief Sets `code` and `why` instead of throwing; otherwise as the overload above.
    [[nodiscard]] static device_memory on_pinned_host(std::size_t bytes, int ordinal, error_code& code,
                                                      diagnostics& why);

    /// @brief Exports GPU memory of the program: a tensor's block, a `cudaMalloc`.
    ///
    /// The function exports whole pages only, and no byte outside the given range. span() is the largest range of whole
    /// host pages inside it. It may begin up to a page after `address`, and end up to a page before the range's end.
    ///
    /// Memory mapped in pieces (PyTorch's expandable_segments) is accepted if each piece is allocated for RDMA. The
    /// function refuses the following, and the error text has the reason:
    /// - memory of a stream-ordered pool (`cudaMallocAsync`);
    /// - managed memory;
    /// - host memory;
    /// - a range with a gap;
    /// - less than one page;
    /// - memory that the driver does not export.
    ///
    /// @param address Address of the first byte.
    /// @param bytes Size in bytes.
    /// @param owner If set, the library holds it until the last user of the memory is gone. A thread of the library may
    ///   release it.
    /// @throws system_error See Errors.
    ///
    /// @par Lifetime
    /// The program must not free the memory before its last user is gone, rx_buffers included.
    ///
    /// @par Errors
    /// - `EINVAL`: the function refuses the memory.
    /// - errc::no_cuda.
    /// - The driver's errors, in cuda_category().
    [[nodiscard]] static device_memory adopt(std::uintptr_t address, std::size_t bytes,
                                             std::shared_ptr<void const> owner = {});
    /// @brief Sets `code` and `why` instead of throwing; otherwise as the overload above.
    [[nodiscard]] static device_memory adopt(std::uintptr_t address, std::size_t bytes,
                                             std::shared_ptr<void const> owner, error_code& code, diagnostics& why);

    /// @brief Returns whether the handle names memory.
    [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }

    /// @brief Returns the kind of the memory.
    /// @pre valid()
    [[nodiscard]] memory_kind kind() const noexcept;
    /// @brief Returns the size in bytes.
    /// @pre valid()
    [[nodiscard]] std::size_t size() const noexcept;
    /// @brief Returns the bytes of the memory.
    /// @pre valid()
    [[nodiscard]] memory_span span() const noexcept;
    /// @brief Returns the exported dmabuf, or -1 (see on_host()).
    ///
    /// The memory owns the descriptor: do not close it.
    /// @pre valid()
    [[nodiscard]] int dmabuf_fd() const noexcept;
    /// @brief Returns one line of text about the memory, for people.
    ///
    /// The line has the kind, the size, the page size and the exporter. It names the mechanism that orders writes of a
    /// NIC before reads of a kernel. It lists missing prerequisites.
    ///
    /// @pre valid()
    [[nodiscard]] std::string explain() const;

  private:
    friend struct detail::session_access;
    explicit device_memory(std::shared_ptr<detail::memory_state> state) noexcept : state_{std::move(state)} {}

    std::shared_ptr<detail::memory_state> state_;
};

}  // namespace gpurx
