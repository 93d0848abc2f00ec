// SPDX-License-Identifier: Apache-2.0
//
// The kernel's interface of devmem TCP, as far as sockets are concerned: numbers and layouts that no distribution's
// headers have yet (Linux 6.12 and later).
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__alpha__) || defined(__mips__) || defined(__hppa__) || defined(__sparc__)
#error "socket option numbers differ on this architecture"
#endif

namespace gpurx::detail::uapi {

inline constexpr int msg_sock_devmem = 0x2000000;  // recvmsg: deliver data that lies in device memory
inline constexpr int scm_devmem_linear = 78;       // control message: bytes in the iov
inline constexpr int scm_devmem_dmabuf = 79;       // control message: bytes in device memory
inline constexpr int so_devmem_dontneed = 80;      // setsockopt: give tokens back

// recvmsg: not one control message fits into the buffer. A number of the kernel's own, in no errno.h.
inline constexpr int etoosmall = 525;

// so_devmem_dontneed: entries, and pages over all entries, in one call.
inline constexpr std::size_t max_dontneed_entries = 128;
inline constexpr std::size_t max_dontneed_pages = 1024;

// The payload of both control messages; in a linear one only the size means something.
struct dmabuf_cmsg {
    std::uint64_t frag_offset;
    std::uint32_t frag_size;
    std::uint32_t frag_token;
    std::uint32_t dmabuf_id;
    std::uint32_t flags;
};
static_assert(sizeof(dmabuf_cmsg) == 24);

// Tokens token_start, token_start + 1, …, each once.
struct dmabuf_token {
    std::uint32_t token_start;
    std::uint32_t token_count;
};
static_assert(sizeof(dmabuf_token) == 8);

// A token is a number to give back. On kernels that have array tokens those from here on are xarray tokens: they have
// the slot behind those of memories (kernel-support/linux-7.3/README.md).
inline constexpr std::uint32_t xarray_token = std::uint32_t{15} << 27;

}  // namespace gpurx::detail::uapi
