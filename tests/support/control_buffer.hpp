// SPDX-License-Identifier: Apache-2.0
//
// Builds the control bytes of a recvmsg, right or wrong.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "flow/devmem_uapi.hpp"

namespace gpurx::test {

class control_buffer {
  public:
    // A message of `payload`, padded as the kernel pads. `length` other than 0: lies about its length.
    control_buffer& add(int level, int type, std::span<std::byte const> payload, std::size_t length = 0)
    {
        cmsghdr const header{
            .cmsg_len = length != 0 ? length : CMSG_LEN(payload.size()), .cmsg_level = level, .cmsg_type = type};
        auto const begin = bytes_.size();
        bytes_.resize(begin + CMSG_SPACE(payload.size()));
        std::memcpy(bytes_.data() + begin, &header, sizeof header);
        if (!payload.empty())
            std::memcpy(bytes_.data() + begin + CMSG_LEN(0), payload.data(), payload.size());
        return *this;
    }
    template <class T>
    control_buffer& add(int level, int type, T const& payload, std::size_t length = 0)
    {
        return add(level, type, std::as_bytes(std::span{&payload, 1}), length);
    }

    control_buffer& device(std::uint64_t offset, std::uint32_t size, std::uint32_t token, std::uint32_t dmabuf_id)
    {
        return add(SOL_SOCKET, detail::uapi::scm_devmem_dmabuf,
                   detail::uapi::dmabuf_cmsg{offset, size, token, dmabuf_id, 0});
    }
    control_buffer& linear(std::uint32_t size)
    {
        return add(SOL_SOCKET, detail::uapi::scm_devmem_linear, detail::uapi::dmabuf_cmsg{0, size, 0, 0, 0});
    }
    // Leaves off the last `count` bytes.
    control_buffer& cut(std::size_t count)
    {
        bytes_.resize(bytes_.size() - count);
        return *this;
    }

    [[nodiscard]] std::span<std::byte const> bytes() const noexcept { return bytes_; }

  private:
    std::vector<std::byte> bytes_;
};

}  // namespace gpurx::test
