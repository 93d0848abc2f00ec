// SPDX-License-Identifier: Apache-2.0
#include "devmem_cmsg.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "devmem_uapi.hpp"

namespace gpurx::detail {

namespace {

constexpr std::size_t align(std::size_t size) noexcept
{
    return (size + sizeof(std::size_t) - 1) & ~(sizeof(std::size_t) - 1);
}

constexpr std::size_t payload_offset = align(sizeof(cmsghdr));

constexpr bool is_devmem(cmsghdr const& header) noexcept
{
    return header.cmsg_level == SOL_SOCKET &&
           (header.cmsg_type == uapi::scm_devmem_dmabuf || header.cmsg_type == uapi::scm_devmem_linear);
}

}  // namespace

std::size_t devmem_control_size(std::size_t pieces) noexcept
{
    return pieces * (payload_offset + align(sizeof(uapi::dmabuf_cmsg)));
}

bool devmem_cmsg_reader::next(devmem_piece& piece) noexcept
{
    while (rest_.size() >= sizeof(cmsghdr)) {
        cmsghdr header;
        std::memcpy(&header, rest_.data(), sizeof header);
        if (header.cmsg_len < sizeof header || header.cmsg_len > rest_.size())
            break;
        auto const message = rest_.first(header.cmsg_len);
        rest_ = rest_.subspan(std::min(align(message.size()), rest_.size()));
        if (!is_devmem(header))
            continue;
        if (message.size() < payload_offset + sizeof(uapi::dmabuf_cmsg)) {
            malformed_ = true;
            continue;
        }
        uapi::dmabuf_cmsg payload;
        std::memcpy(&payload, message.data() + payload_offset, sizeof payload);
        piece = {
            .kind =
                header.cmsg_type == uapi::scm_devmem_dmabuf ? devmem_piece::where::device : devmem_piece::where::linear,
            .size = payload.frag_size,
            .offset = payload.frag_offset,
            .token = payload.frag_token,
            .dmabuf_id = payload.dmabuf_id,
        };
        return true;
    }
    // Less than a header is left, or one whose length leads nowhere.
    malformed_ = malformed_ || !rest_.empty();
    rest_ = {};
    return false;
}

}  // namespace gpurx::detail
