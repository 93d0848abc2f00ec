// SPDX-License-Identifier: Apache-2.0
//
// Reads the control messages of one recvmsg(MSG_SOCK_DEVMEM). Pure: bytes in, pieces of the stream out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpurx::detail {

// One piece of the stream. Pieces come in stream order.
struct devmem_piece {
    enum class where : std::uint8_t {
        device,  // at `offset` of the binding `dmabuf_id`; `token` gives it back
        linear,  // the next `size` bytes of the iov
    };

    where kind = where::device;
    std::uint32_t size = 0;
    std::uint64_t offset = 0;
    std::uint32_t token = 0;
    std::uint32_t dmabuf_id = 0;

    friend bool operator==(devmem_piece const&, devmem_piece const&) = default;
};

// Control bytes of `pieces` pieces.
[[nodiscard]] std::size_t devmem_control_size(std::size_t pieces) noexcept;

class devmem_cmsg_reader {
  public:
    // `control`: msg_control, msg_controllen as recvmsg left them. Any bytes at any alignment are safe to read.
    explicit devmem_cmsg_reader(std::span<std::byte const> control) noexcept : rest_{control} {}

    // The next piece; false at the end. Messages of other kinds (timestamps and the like) are passed over.
    [[nodiscard]] bool next(devmem_piece& piece) noexcept;

    // True if the reader met a message whose length is impossible and so stopped, or one of devmem that is too short
    // and was passed over. No kernel writes either.
    [[nodiscard]] bool malformed() const noexcept { return malformed_; }

  private:
    std::span<std::byte const> rest_;
    bool malformed_ = false;
};

}  // namespace gpurx::detail
