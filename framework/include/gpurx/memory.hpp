// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory that a NIC may write into: device_memory.
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

/// @brief A handle to memory that a NIC may write into. Copies name the same bytes.
///
/// @par Lifetime
/// The bytes live until the last handle, session, receiver and rx_buffer that uses them is gone. These may be destroyed
/// in any order.
///
/// @par Thread safety
/// Distinct handles are independent. Const members may be called at the same time.
class device_memory {
  public:
    /// @brief Constructs an empty handle. valid() is false; only assignment and destruction are allowed.
    device_memory() noexcept = default;

    /// @brief Allocates host memory, exported by `/dev/udmabuf`.
    ///
    /// The memory is a memfd. It has huge pages of 2 MiB if the system has enough of them free, otherwise ordinary
    /// pages. Pages at the NIC larger than the kernel's need huge pages (`rx_session_options::rx_page_size`).
    ///
    /// If `/dev/udmabuf` cannot be opened, only transport `copy` can use the memory. dmabuf_fd() is then -1, and
    /// explain() tells the reason.
    ///
    /// @param bytes Size, rounded up to 2 MiB with huge pages, to the page size without.
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
    /// @param bytes Size, rounded up to 2 MiB.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// - errc::no_cuda: the library was built without CUDA, or the machine has no driver.
    /// - `EINVAL`: `bytes` is 0.
    /// - The driver's errors, in cuda_category().
    [[nodiscard]] static device_memory on_gpu(int ordinal, std::size_t bytes);
    /// @brief Sets `code` and `why` instead of throwing; otherwise as the overload above.
    [[nodiscard]] static device_memory on_gpu(int ordinal, std::size_t bytes, error_code& code, diagnostics& why);

    /// @brief Allocates host memory that CUDA pins, for the CPU and for kernels of the GPU.
    ///
    /// A GPU reads it across PCIe. The driver exports the memory if it can: CUDA 13.0, and a GPU without memory of its
    /// own, so not an H100. Otherwise the memory is exported as on_host() does, and pinned after that.
    ///
    /// kind() is `host`. rx_buffer::release_after() waits for the stream all the same.
    ///
    /// @param bytes Size, rounded up to the page size.
    /// @param ordinal CUDA ordinal of the GPU.
    /// @throws system_error See Errors.
    ///
    /// @par Errors
    /// As on_gpu().
    [[nodiscard]] static device_memory on_pinned_host(std::size_t bytes, int ordinal = 0);
    /// @brief Sets `code` and `why` instead of throwing; otherwise as the overload above.
    [[nodiscard]] static device_memory on_pinned_host(std::size_t bytes, int ordinal, error_code& code,
                                                      diagnostics& why);

    /// @brief Exports GPU memory that the program owns: a tensor's block, a `cudaMalloc`.
    ///
    /// Only whole pages can be exported, and no byte outside the given range. span() is the largest range of whole host
    /// pages inside it. It may begin up to a page after `address`, and end up to a page before the range's end.
    ///
    /// Memory mapped piece by piece (PyTorch's expandable_segments) is accepted if each piece is allocated for RDMA.
    /// The function refuses the following, with the reason in the text:
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
    /// The memory must not be freed before its last user is gone, rx_buffer included.
    ///
    /// @par Errors
    /// - `EINVAL`: the memory is refused.
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
    /// @brief Returns the exported dmabuf, or -1 (see on_host()). The memory owns it: do not close it.
    /// @pre valid()
    [[nodiscard]] int dmabuf_fd() const noexcept;
    /// @brief Returns one line for people about the memory.
    ///
    /// The line has the kind, the size, the page size and the exporter. It also tells what orders writes of a NIC
    /// before reads of a kernel, and what is missing.
    ///
    /// @pre valid()
    [[nodiscard]] std::string explain() const;

  private:
    friend struct detail::session_access;
    explicit device_memory(std::shared_ptr<detail::memory_state> state) noexcept : state_{std::move(state)} {}

    std::shared_ptr<detail::memory_state> state_;
};

}  // namespace gpurx
