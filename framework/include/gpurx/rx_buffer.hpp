// SPDX-License-Identifier: Apache-2.0
//
// rx_buffer: received bytes on loan. The pages go back when it dies.
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

// One piece of the stream, contiguous in memory. Pieces come in stream order; their addresses in any order.
struct fragment {
    std::uintptr_t address = 0;  // a GPU address if kind is device: not for the CPU
    std::size_t size = 0;        // never 0
    memory_kind kind = memory_kind::host;

    friend bool operator==(fragment const&, fragment const&) = default;
};

template <>
inline constexpr bool detail::names_other_bytes<fragment> = true;

// Move-only. A moved-from or default-constructed rx_buffer is empty and holds nothing.
//
// Lifetime: keeps the flow's socket open and the memory mapped (at close the kernel would give the pages away, or keep
// them), so it may outlive the receiver, the session and the io_context, and be destroyed in any order. Thread safety:
// destroying it, release() and release_after() are safe from any thread at any time, need no executor and never throw.
// Two calls on one rx_buffer at the same time are not safe. Cost: giving pages back is at most one setsockopt per 128
// runs of pages; none while the receiver is working, which then takes them along. With transport devmem a buffer has up
// to 16 KiB of host memory for its description however few bytes it holds, because nothing may fail once bytes have
// left the socket; the flow uses it again. So keep few large buffers rather than thousands of small ones.
class rx_buffer {
  public:
    rx_buffer() noexcept = default;
    rx_buffer(rx_buffer&& other) noexcept : flow_{std::move(other.flow_)}, loan_{std::exchange(other.loan_, nullptr)} {}
    rx_buffer& operator=(rx_buffer&& other) noexcept;
    ~rx_buffer()
    {
        if (loan_ != nullptr)
            release();
    }

    // Valid until the buffer is released, moved from or destroyed.
    [[nodiscard]] std::span<fragment const> fragments() const noexcept;
    // Sum of the fragments' sizes.
    [[nodiscard]] std::size_t size() const noexcept;
    [[nodiscard]] bool empty() const noexcept { return size() == 0; }

    // Takes the first `bytes` off and returns them; this keeps the rest. Both lend pages of the same batch, which go
    // back when the last of all buffers that were split from it is released; each may be released, and released after
    // streams, by itself, in any order and from any thread. Throws std::out_of_range if bytes > size(), and
    // std::bad_alloc; nothing has changed then. Cost: one allocation; none if `bytes` is 0 or all.
    [[nodiscard]] rx_buffer split(std::size_t bytes);

    // Makes the bytes visible to work that is enqueued on `stream` from now on: what a NIC wrote, and what transport
    // copy has on its way to the GPU. Call it before reading fragments from a GPU, once per buffer and stream (gather
    // does it by itself). Does not wait; but on a stream that is being captured into a graph, for what transport copy
    // has on its way, as a graph cannot. Without a stream: CUDA's default stream. For host memory: before the CPU
    // reads; costs nothing on x86-64. Cost: none where the GPU orders a NIC's writes; else a call of the driver that
    // waits for them; with transport copy two calls.
    void acquire(cuda_stream_ref stream = {}) noexcept;

    // Gives the pages back once all work enqueued on `stream` so far has finished; the buffer is empty at once, and
    // nothing waits, but as every caller of CUDA does for a stream with a thousand commands ahead. Without a stream:
    // CUDA's default stream for memory of a GPU, now for host memory. If the GPU falls into an error, now. Cost: an
    // event recorded on the stream. A thread of the library gives the pages back: some 80 us after the stream has
    // passed, or an eighth of the time that it took, at most 16 ms (docs/gpu.md).
    void release_after(cuda_stream_ref stream) noexcept;
    // Gives the pages back now, or once a stream has passed that an async_read has used on this buffer's bytes. The
    // buffer is empty afterwards.
    void release() noexcept;

  private:
    friend class detail::flow;
    rx_buffer(std::shared_ptr<detail::flow> owner, detail::loan* record) noexcept;

    std::shared_ptr<detail::flow> flow_;
    detail::loan* loan_ = nullptr;
};

}  // namespace gpurx
