/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <x86intrin.h>

/* Linux 7.3: include/linux/socket.h, include/uapi/asm-generic/socket.h, include/uapi/linux/uio.h */
enum {
    msg_sock_devmem = 0x2000000,
    scm_devmem_dmabuf = 79,
    so_devmem_dontneed = 80,
};

struct token_range {
    uint32_t first;
    uint32_t count;
};

uint64_t read_clock(void)
{
    return __rdtsc();
}

size_t control_for(unsigned int fragments)
{
    return fragments * CMSG_SPACE(sizeof(struct fragment));
}

ssize_t receive_once(int socket, int flags, const struct receive_buffers* buffers, struct fragment* into,
                     unsigned int* fragments, uint64_t* instructions)
{
    struct iovec iov = {.iov_base = buffers->host, .iov_len = buffers->host_bytes};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = buffers->control, .msg_controllen = buffers->control_bytes};
    uint64_t start = read_clock();
    ssize_t received = recvmsg(socket, &message, msg_sock_devmem | MSG_DONTWAIT | flags);
    uint64_t bytes = 0;

    *instructions = read_clock() - start;
    *fragments = 0;
    if (received <= 0)
        return received;
    for (struct cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != scm_devmem_dmabuf)
            continue;
        memcpy(&into[*fragments], CMSG_DATA(header), sizeof(*into));
        bytes += into[*fragments].size;
        ++*fragments;
    }
    if (bytes != (uint64_t)received) {
        errno = EPROTO;
        return -1;
    }
    return received;
}

int release_once(int socket, const uint32_t* tokens, unsigned int count, unsigned int* ranges, uint64_t* instructions)
{
    struct token_range list[release_most_ranges];
    unsigned int used = 0;

    for (unsigned int i = 0; i < count; i++) {
        if (used && list[used - 1].first + list[used - 1].count == tokens[i])
            list[used - 1].count++;
        else
            list[used++] = (struct token_range){.first = tokens[i], .count = 1};
    }

    socklen_t size = used * (socklen_t)sizeof(list[0]);
    uint64_t start = read_clock();
    int freed = setsockopt(socket, SOL_SOCKET, so_devmem_dontneed, list, size);

    *instructions = read_clock() - start;
    *ranges = used;
    if (freed >= 0 && (unsigned int)freed != count) {
        errno = EPROTO;
        return -1;
    }
    return freed < 0 ? -1 : 0;
}
