// SPDX-License-Identifier: Apache-2.0
//
// Memory bound to the RX queue that guest.sh steers flows to, and how packets arrive in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/syscalls.hpp"
#include "nic/kernel_nic.hpp"

namespace bench {

inline constexpr char const* interface = "dms0";
inline constexpr unsigned queue = 3;  // as in guest.sh

// contiguous: in huge pages. scattered: in pages of 4 KiB, those that follow each other lie anywhere.
enum class memory_kind : std::uint8_t { contiguous, scattered };

// Memory that can be bound. Throws std::system_error, gpurx::system_error.
class dmabuf {
  public:
    dmabuf(memory_kind kind, std::size_t bytes);

    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

  private:
    gpurx::detail::unique_fd memory_;
    gpurx::detail::unique_fd fd_;
    std::size_t size_;
};

// Bound to the queue as long as what it returns lives. `shared`: tokens that any socket can return, which a kernel must
// know. Throws gpurx::system_error.
[[nodiscard]] std::unique_ptr<gpurx::detail::rx_binding> bind(dmabuf const& memory, std::uint32_t page_size,
                                                              bool shared);

// A binding needs packets' headers in other memory than their payload.
void split_headers();

// segmented: what the sender gives its NIC in one piece arrives in packets of one MSS, and nothing joins them again
// before TCP. packing: such packets share pages, as the fault `pack` of devmemsim says.
struct arrival {
    bool segmented;
    unsigned packing;
};
void set_arrival(arrival how);

}  // namespace bench
