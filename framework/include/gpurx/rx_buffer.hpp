// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Received bytes on loan: rx_buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <gpurx/views.hpp>

namespace gpurx {

namespace detail {
class flow;
struct loan;
}  // namespace detail

/// @brief A piece of the stream, contiguous in memory.
///
/// Fragments are in stream order. Their addresses are in any order.
struct fragment {
    std::uintptr_t address = 0;            ///< Address. The CPU must not access it if `kind` is `device`.
    std::size_t size = 0;                  ///< Size in bytes, never 0.
    memory_kind kind = memory_kind::host;  ///< Kind of memory at the address.

    friend bool operator==(fragment const&, fragment const&) = default;
};

template <>
inline constexpr bool detail::names_other_bytes<fragment> = true;

/// @brief A move-only loan of received bytes. Its destruction returns the pages.
///
/// A moved-from or default-constructed buffer is empty and holds no pages. Prefer few large buffers to thousands of
/// small ones.
///
/// @par Lifetime
/// A buffer keeps the socket of its flow open and the memory mapped. If the socket closed, the kernel would reuse the
/// pages, or keep them. A buffer may outlive the receiver, the session and the `io_context`. They may be destroyed in
/// any order.
///
/// @par Thread safety
/// The destructor, release() and release_after() are safe from any thread at any time. They need no executor and never
/// throw. Two simultaneous calls on one buffer are unsafe.
///
/// @par Cost
/// - To return pages: at most one `setsockopt` per 128 runs of pages. None while the receiver is working: it then
///   returns them with its own calls.
/// - With transport `devmem`: up to 16 KiB of host memory for the buffer's description, however few bytes it holds. The
///   memory is reserved because nothing may fail once bytes have left the socket. The flow reuses it.
class rx_buffer {
  public:
    /// @brief Constructs an empty buffer.
    rx_buffer() noexcept = default;
    /// @brief Moves the loan; `other` is empty afterwards.
    rx_buffer(rx_buffer&& other) noexcept : flow_{std::move(other.flow_)}, loan_{std::exchange(other.loan_, nullptr)} {}
    /// @brief Releases the present loan and moves that of `other`, which is empty afterwards.
    rx_buffer& operator=(rx_buffer&& other) noexcept;
    /// @brief Releases the loan, as release() does.
    ~rx_buffer()
    {
        if (loan_ != nullptr)
            release();
    }

    /// @brief Returns the pieces of the buffer in stream order.
    /// @par Lifetime
    /// The span is valid until the buffer is released, moved from or destroyed.
    [[nodiscard]] std::span<fragment const> fragments() const noexcept;
    /// @brief Returns the sum of the fragments' sizes in bytes.
    [[nodiscard]] std::size_t size() const noexcept;
    /// @brief Returns whether the buffer holds no bytes.
    [[nodiscard]] bool empty() const noexcept { return size() == 0; }

    /// @brief Takes the first `bytes` off and returns them; this buffer keeps the rest.
    ///
    /// Both buffers hold pages of the same batch. The pages return when the last buffer split from the batch is
    /// released. Release each buffer separately, directly or after streams, in any order and from any thread.
    ///
    /// @param bytes Size of the returned buffer, at most size().
    /// @throws std::out_of_range If `bytes` is greater than size(). Nothing has changed then.
    /// @throws std::bad_alloc If memory runs out. Nothing has changed then.
    ///
    /// @par Cost
    /// One allocation; none if `bytes` is 0 or size().
    [[nodiscard]] rx_buffer split(std::size_t bytes);

    /// @brief Makes the bytes visible to work enqueued on `stream` from now on.
    ///
    /// Call it before a GPU reads the fragments, once per buffer and stream. For host memory, call it before the CPU
    /// reads. gather() needs no such call. The call covers bytes that a NIC wrote, and bytes that transport `copy` is
    /// still copying to the GPU.
    ///
    /// The call does not wait, with one exception. On a stream that is being captured into a graph, it waits for
    /// unfinished copies of transport `copy`. A graph cannot wait for them.
    ///
    /// @param stream Stream of the reading work. Empty: CUDA's default stream.
    ///
    /// @par Cost
    /// - GPU memory: none if the GPU orders writes of a NIC. Otherwise one driver call, which waits for these writes.
    /// - GPU memory with transport `copy`: two driver calls.
    /// - Host memory on x86-64: none.
    void acquire(cuda_stream_ref stream = {}) noexcept;

    /// @brief Returns the pages once all work enqueued on `stream` so far has finished.
    ///
    /// The buffer is empty at once. The call does not wait for the stream. Like every CUDA call, it may block on a
    /// stream with a thousand commands queued. If the GPU enters an error state, the pages return immediately.
    ///
    /// @param stream Stream of the reading work. Empty: CUDA's default stream for GPU memory; pages of host memory
    ///   return immediately.
    ///
    /// @par Cost
    /// One event recorded on the stream. A thread of the library returns the pages some 80 us after the stream has
    /// passed. After a long wait the delay is an eighth of the wait, at most 16 ms (docs/gpu.md).
    void release_after(cuda_stream_ref stream) noexcept;
    /// @brief Returns the pages. The buffer is empty afterwards.
    ///
    /// If an async_read() has used a stream on bytes of this buffer, the pages return once that stream has passed.
    void release() noexcept;

  private:
    friend class detail::flow;
    rx_buffer(std::shared_ptr<detail::flow> owner, detail::loan* record) noexcept;

    std::shared_ptr<detail::flow> flow_;
    detail::loan* loan_ = nullptr;
};

}  // namespace gpurx
