// SPDX-License-Identifier: Apache-2.0
//
// Reads the control messages of one recvmsg(MSG_SOCK_DEVMEM). Pure: bytes in, pieces of the stream out.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "devmem_uapi.hpp"

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

namespace cmsg {

// As the kernel lays out control messages: header, payload, padding.
[[nodiscard]] constexpr std::size_t align(std::size_t size) noexcept
{
    return (size + sizeof(std::size_t) - 1) & ~(sizeof(std::size_t) - 1);
}
inline constexpr std::size_t payload_offset = align(sizeof(cmsghdr));

}  // namespace cmsg

// Control bytes of `pieces` pieces.
[[nodiscard]] constexpr std::size_t devmem_control_size(std::size_t pieces) noexcept
{
    return pieces * (cmsg::payload_offset + cmsg::align(sizeof(uapi::dmabuf_cmsg)));
}

class devmem_cmsg_reader {
  public:
    // `control`: msg_control, msg_controllen as recvmsg left them. Any bytes at any alignment are safe to read.
    explicit devmem_cmsg_reader(std::span<std::byte const> control) noexcept
        : at_{control.data()}, left_{control.size()}
    {}

    // The next piece; false at the end. Messages of other kinds (timestamps and the like) are passed over.
    [[nodiscard]] bool next(devmem_piece& piece) noexcept;
    // The same for the pieces that nearly all are, in device memory, as long as nothing else comes between them and
    // `take`, which is called with each, says true. Returns how many it was true for.
    template <class Take>
    std::size_t take_on_device(Take take);

    // True if the reader met a message whose length is impossible and so stopped, or one of devmem that is too short
    // and was passed over. No kernel writes either.
    [[nodiscard]] bool malformed() const noexcept { return malformed_; }

  private:
    [[nodiscard]] static devmem_piece read(devmem_piece::where kind, std::byte const* payload) noexcept
    {
        // Field by field: a copy of the whole would be made in memory.
        return {
            .kind = kind,
            .size = load<std::uint32_t>(payload + offsetof(uapi::dmabuf_cmsg, frag_size)),
            .offset = load<std::uint64_t>(payload + offsetof(uapi::dmabuf_cmsg, frag_offset)),
            .token = load<std::uint32_t>(payload + offsetof(uapi::dmabuf_cmsg, frag_token)),
            .dmabuf_id = load<std::uint32_t>(payload + offsetof(uapi::dmabuf_cmsg, dmabuf_id)),
        };
    }
    template <class Field>
    [[nodiscard]] static Field load(std::byte const* from) noexcept
    {
        Field value;
        std::memcpy(&value, from, sizeof value);
        return value;
    }

    std::byte const* at_;
    std::size_t left_;
    bool malformed_ = false;
};

inline bool devmem_cmsg_reader::next(devmem_piece& piece) noexcept
{
    while (left_ >= sizeof(cmsghdr)) {
        cmsghdr header;
        std::memcpy(&header, at_, sizeof header);
        if (header.cmsg_len < sizeof header || header.cmsg_len > left_)
            break;
        auto const* const payload = at_ + cmsg::payload_offset;
        auto const step = std::min(cmsg::align(header.cmsg_len), left_);
        at_ += step;
        left_ -= step;
        auto const is_device = header.cmsg_type == uapi::scm_devmem_dmabuf;
        if (header.cmsg_level != SOL_SOCKET || (!is_device && header.cmsg_type != uapi::scm_devmem_linear))
            continue;
        if (header.cmsg_len < cmsg::payload_offset + sizeof(uapi::dmabuf_cmsg)) {
            malformed_ = true;
            continue;
        }
        piece = read(is_device ? devmem_piece::where::device : devmem_piece::where::linear, payload);
        return true;
    }
    // Less than a header is left, or one whose length leads nowhere.
    malformed_ = malformed_ || left_ > 0;
    left_ = 0;
    return false;
}

// It runs once for every fragment: in registers, if `take` is inline.
template <class Take>
std::size_t devmem_cmsg_reader::take_on_device(Take take)
{
    constexpr auto size = devmem_control_size(1);
    static_assert(size == cmsg::payload_offset + sizeof(uapi::dmabuf_cmsg), "our messages have no padding");
    auto const* at = at_;
    auto const* const end = at_ + left_ / size * size;
    for (; at != end; at += size) {
        cmsghdr header;
        std::memcpy(&header, at, sizeof header);
        if (header.cmsg_len != size || header.cmsg_level != SOL_SOCKET || header.cmsg_type != uapi::scm_devmem_dmabuf)
            break;
        if (!take(read(devmem_piece::where::device, at + cmsg::payload_offset)))
            break;
    }
    auto const taken = static_cast<std::size_t>(at - at_);
    left_ -= taken;
    at_ = at;
    return taken / size;
}

}  // namespace gpurx::detail
