/* SPDX-License-Identifier: Apache-2.0 */
#include "baseline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* Linux 7.3: include/linux/socket.h, include/uapi/asm-generic/socket.h, include/uapi/linux/uio.h */
enum {
    msg_sock_devmem = 0x2000000,
    scm_devmem_linear = 78,
    scm_devmem_dmabuf = 79,
    so_devmem_dontneed = 80,
    ranges_per_call = 128,
    pages_per_call = 1024,
};

struct devmem_fragment {
    uint64_t offset;
    uint32_t size;
    uint32_t token;
    uint32_t dmabuf_id;
    uint32_t flags;
};

struct token_range {
    uint32_t first;
    uint32_t count;
};

struct batch {
    struct token_range ranges[ranges_per_call];
    unsigned int used;
    unsigned int pages;
};

/* The same sizes as the library's, so that both end their calls at the same places. */
enum { control_fragments = 512, host_bytes = control_fragments * 4096 };

int baseline_open(struct baseline* loop, int socket)
{
    struct epoll_event event = {.events = EPOLLIN};

    memset(loop, 0, sizeof(*loop));
    loop->socket = socket;
    loop->control_size = control_fragments * CMSG_SPACE(sizeof(struct devmem_fragment));
    loop->host_size = host_bytes;
    loop->control = malloc(loop->control_size);
    loop->host = malloc(loop->host_size);
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!loop->control || !loop->host || loop->epoll < 0 || epoll_ctl(loop->epoll, EPOLL_CTL_ADD, socket, &event)) {
        baseline_close(loop);
        return -1;
    }
    return 0;
}

void baseline_close(struct baseline* loop)
{
    free(loop->control);
    free(loop->host);
    if (loop->epoll >= 0)
        close(loop->epoll);
    loop->control = NULL;
    loop->host = NULL;
    loop->epoll = -1;
}

static int flush(struct baseline* loop, struct batch* batch)
{
    socklen_t size = batch->used * (socklen_t)sizeof(batch->ranges[0]);
    int freed;

    if (!batch->used)
        return 0;
    freed = setsockopt(loop->socket, SOL_SOCKET, so_devmem_dontneed, batch->ranges, size);
    loop->release_calls++;
    if (freed >= 0 && (unsigned int)freed != batch->pages) {
        errno = EPROTO;
        freed = -1;
    }
    batch->used = 0;
    batch->pages = 0;
    return freed < 0 ? -1 : 0;
}

static int give_back(struct baseline* loop, struct batch* batch, uint32_t token)
{
    struct token_range* last = batch->used ? &batch->ranges[batch->used - 1] : NULL;

    if (batch->pages == pages_per_call) {
        if (flush(loop, batch))
            return -1;
        last = NULL;
    }
    if (last && last->first + last->count == token) {
        last->count++;
    } else if (last && token + 1 == last->first) {
        last->first--;
        last->count++;
    } else {
        if (batch->used == ranges_per_call && flush(loop, batch))
            return -1;
        batch->ranges[batch->used].first = token;
        batch->ranges[batch->used].count = 1;
        batch->used++;
    }
    batch->pages++;
    return 0;
}

static ssize_t receive(struct baseline* loop, struct batch* batch, uint64_t limit)
{
    struct iovec iov = {.iov_base = loop->host, .iov_len = loop->host_size};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = loop->control, .msg_controllen = loop->control_size};
    struct cmsghdr* header;
    ssize_t received;

    if (limit < iov.iov_len)
        iov.iov_len = (size_t)limit;
    received = recvmsg(loop->socket, &message, msg_sock_devmem | MSG_DONTWAIT);
    loop->receive_calls++;
    if (received <= 0)
        return received;
    /* As gpurx: a call that found less than it had room for has taken all, and the next would be in vain. */
    loop->drained = (size_t)received < iov.iov_len &&
                    message.msg_controllen + CMSG_SPACE(sizeof(struct devmem_fragment)) <= loop->control_size;
    for (header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
        struct devmem_fragment fragment;

        if (header->cmsg_level != SOL_SOCKET)
            continue;
        memcpy(&fragment, CMSG_DATA(header), sizeof(fragment));
        if (header->cmsg_type == scm_devmem_linear)
            loop->host_bytes += fragment.size;
        if (header->cmsg_type != scm_devmem_dmabuf)
            continue;
        loop->fragments++;
        if (give_back(loop, batch, fragment.token))
            return -1;
    }
    return received;
}

int baseline_run(struct baseline* loop, uint64_t bytes)
{
    struct batch batch = {.used = 0};
    struct epoll_event event;

    while (bytes) {
        ssize_t received = receive(loop, &batch, bytes);

        if (received > 0) {
            bytes -= (uint64_t)received;
            if (!bytes || !loop->drained)
                continue;
        } else if (received == 0) {
            errno = EPIPE;
            return -1;
        } else if (errno == EINTR) {
            continue;
        } else if (errno != EAGAIN) {
            return -1;
        }
        if (flush(loop, &batch))
            return -1;
        if (epoll_wait(loop->epoll, &event, 1, -1) < 0 && errno != EINTR)
            return -1;
    }
    return flush(loop, &batch);
}
