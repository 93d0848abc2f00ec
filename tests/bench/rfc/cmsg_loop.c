/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../tokens/calls.h"
#include "drain.h"

/* Linux 7.3: include/linux/socket.h, include/uapi/asm-generic/socket.h, include/uapi/linux/uio.h */
enum { msg_sock_devmem = 0x2000000, scm_devmem_dmabuf = 79 };

enum { page_bytes = 4096, host_bytes = fragments_per_call * 16 * page_bytes };

int cmsg_open(struct cmsg_loop* loop, enum return_way way, const int* sockets, unsigned int count)
{
    memset(loop, 0, sizeof(*loop));
    loop->epoll = -1;
    if (return_open(&loop->returner, way, sockets, count))
        return -1;
    loop->flow_count = count;
    loop->control_size = fragments_per_call * CMSG_SPACE(sizeof(struct fragment));
    loop->host_size = host_bytes;
    loop->control = malloc(loop->control_size);
    loop->host = malloc(loop->host_size);
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!loop->control || !loop->host || loop->epoll < 0)
        return -1;
    for (unsigned int i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};

        loop->flows[i].socket = sockets[i];
        if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, sockets[i], &event))
            return -1;
    }
    return 0;
}

void cmsg_close(struct cmsg_loop* loop)
{
    return_close(&loop->returner);
    free(loop->control);
    free(loop->host);
    if (loop->epoll >= 0)
        close(loop->epoll);
    loop->epoll = -1;
}

/* A fragment that does not end in the page that it begins in has the tokens of all its pages, one after the other. */
static int take(struct cmsg_loop* loop, unsigned int which, const struct fragment* fragment)
{
    uint64_t first = fragment->offset / page_bytes;
    uint64_t last = (fragment->offset + fragment->size - 1) / page_bytes;
    struct token_range range = {.first = fragment->token, .count = (uint32_t)(last - first + 1)};

    loop->counts.fragments++;
    loop->counts.pages += range.count;
    return return_add(&loop->returner, which, loop->flows[which].socket, range);
}

static ssize_t receive(struct cmsg_loop* loop, unsigned int which)
{
    struct flow* from = &loop->flows[which];
    struct iovec iov = {.iov_base = loop->host, .iov_len = loop->host_size};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = loop->control, .msg_controllen = loop->control_size};
    ssize_t received = recvmsg(from->socket, &message, msg_sock_devmem | MSG_DONTWAIT);

    loop->counts.system_calls++;
    if (received <= 0)
        return received;
    /* A call that found less than it had room for has taken all, and the next would be in vain. */
    from->ready = message.msg_controllen + CMSG_SPACE(sizeof(struct fragment)) > loop->control_size;
    for (struct cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
        struct fragment fragment;

        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != scm_devmem_dmabuf) {
            errno = EPROTO;
            return -1;
        }
        memcpy(&fragment, CMSG_DATA(header), sizeof(fragment));
        if (take(loop, which, &fragment))
            return -1;
    }
    return return_flush(&loop->returner, which, from->socket) ? -1 : received;
}

static int serve(struct cmsg_loop* loop, unsigned int which)
{
    struct flow* from = &loop->flows[which];
    ssize_t received = receive(loop, which);

    if (received > 0) {
        from->left -= (uint64_t)received;
        from->ready = from->ready && from->left;
        return 0;
    }
    if (received < 0 && errno == EAGAIN) {
        from->ready = 0;
        return 0;
    }
    if (received == 0)
        errno = EPIPE;
    return -1;
}

static int wait_for_more(struct cmsg_loop* loop)
{
    struct epoll_event events[most_flows];
    int count = epoll_wait(loop->epoll, events, most_flows, -1);

    loop->counts.system_calls++;
    if (count < 0 && errno != EINTR)
        return -1;
    for (int i = 0; i < count; i++)
        loop->flows[events[i].data.u32].ready = 1;
    return 0;
}

int cmsg_run(struct cmsg_loop* loop, uint64_t bytes_of_each)
{
    int left = 1;

    for (unsigned int i = 0; i < loop->flow_count; i++)
        loop->flows[i].left = bytes_of_each;
    while (left) {
        int ready = 0;

        left = 0;
        for (unsigned int i = 0; i < loop->flow_count; i++) {
            if (loop->flows[i].ready && serve(loop, i))
                return -1;
            ready |= loop->flows[i].ready;
            left |= loop->flows[i].left != 0;
        }
        if (left && !ready && wait_for_more(loop))
            return -1;
    }
    loop->counts.system_calls += loop->returner.system_calls;
    loop->returner.system_calls = 0;
    return 0;
}

ssize_t receive_tokens(int socket, struct fragment_list* list)
{
    static char host[host_bytes];
    char control[fragments_per_call * CMSG_SPACE(sizeof(struct fragment))];
    const struct receive_buffers buffers = {control, sizeof(control), host, sizeof(host)};
    struct fragment taken[fragments_per_call];
    uint64_t instructions;
    ssize_t received = receive_once(socket, 0, &buffers, taken, &list->count, &instructions);

    for (unsigned int i = 0; i < list->count; i++)
        list->tokens[i] = taken[i].token;
    return received;
}
