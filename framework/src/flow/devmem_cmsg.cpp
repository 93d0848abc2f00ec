// SPDX-License-Identifier: Apache-2.0
#include "devmem_cmsg.hpp"

#include <algorithm>

namespace gpurx::detail {

bool devmem_cmsg_reader::next(devmem_piece& piece) noexcept
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

}  // namespace gpurx::detail
