// SPDX-License-Identifier: Apache-2.0
//
// Memory in huge pages as a dmabuf, bound to the RX queue that guest.sh steers flows to. What io_uring registers on the
// queue itself needs the dmabuf alone.
#pragma once

#include <cstddef>
#include <memory>

#include "nic/kernel_nic.hpp"
#include "syscalls.hpp"

namespace bench {

inline constexpr char const* interface = "dms0";
inline constexpr unsigned queue = 3;  // as in guest.sh

class dmabuf {
  public:
    // Throws std::system_error, gpurx::system_error.
    explicit dmabuf(std::size_t bytes);

    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

  private:
    gpurx::detail::unique_fd memory_;
    gpurx::detail::unique_fd fd_;
    std::size_t size_;
};

// Lives as long as what it returns.
[[nodiscard]] std::unique_ptr<gpurx::detail::rx_binding> bind(dmabuf const& memory);

// Queues for device memory need packets' headers in other memory than their payload.
void split_headers();

}  // namespace bench
