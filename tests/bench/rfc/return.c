/* SPDX-License-Identifier: Apache-2.0 */
#include "return.h"

#include <errno.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    so_devmem_dontneed = 80, /* include/uapi/asm-generic/socket.h */
    /* kernel-support/linux-7.3/rfc: there alone */
    so_devmem_return_ring = 1001,
    cmd_return = 18,
    attribute_socket = 1,
    attribute_tokens = 2,
    attribute_returned = 3,
};

static const size_t before_attributes = sizeof(struct nlmsghdr) + sizeof(struct genlmsghdr);

/* What a setsockopt is told of a ring */
struct ring_place {
    uint64_t address;
    uint32_t entries;
    uint32_t pad;
};

static int open_ring(struct return_ring* ring, int socket)
{
    struct ring_place place = {.entries = ring_entries};

    ring->size = sizeof(*ring->shared) + ring_entries * sizeof(uint32_t);
    ring->shared = mmap(NULL, ring->size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE | MAP_POPULATE, -1, 0);
    if (ring->shared == MAP_FAILED)
        return -1;
    ring->tokens = (uint32_t*)(ring->shared + 1);
    place.address = (uint64_t)(uintptr_t)ring->shared;
    return setsockopt(socket, SOL_SOCKET, so_devmem_return_ring, &place, sizeof(place));
}

static struct nlattr* put(char* at, uint16_t type, const void* data, size_t size)
{
    struct nlattr* attribute = (struct nlattr*)at;

    attribute->nla_type = type;
    attribute->nla_len = (uint16_t)(sizeof(struct nlattr) + size);
    memcpy(at + sizeof(struct nlattr), data, size);
    return attribute;
}

static const struct nlattr* find(const char* message, size_t size, uint16_t type)
{
    size_t at = before_attributes;

    while (at + sizeof(struct nlattr) <= size) {
        const struct nlattr* attribute = (const struct nlattr*)(message + at);

        if (attribute->nla_type == type)
            return attribute;
        at += ((size_t)attribute->nla_len + NLA_ALIGNTO - 1) / NLA_ALIGNTO * NLA_ALIGNTO;
    }
    return NULL;
}

static int open_netlink(struct returner* one)
{
    char name[8] = "netdev", buffer[8192] __attribute__((aligned(8))) = {0};
    struct nlmsghdr* header = (struct nlmsghdr*)buffer;
    struct genlmsghdr* command = (struct genlmsghdr*)(buffer + NLMSG_HDRLEN);
    const struct nlattr* family;
    ssize_t received;

    one->netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);
    if (one->netlink < 0)
        return -1;
    *header = (struct nlmsghdr){
        .nlmsg_len = before_attributes + sizeof(struct nlattr) + sizeof(name),
        .nlmsg_type = GENL_ID_CTRL,
        .nlmsg_flags = NLM_F_REQUEST,
    };
    *command = (struct genlmsghdr){.cmd = CTRL_CMD_GETFAMILY, .version = 1};
    put(buffer + before_attributes, CTRL_ATTR_FAMILY_NAME, name, sizeof(name));
    if (send(one->netlink, buffer, header->nlmsg_len, 0) < 0)
        return -1;
    received = recv(one->netlink, buffer, sizeof(buffer), 0);
    family = received < 0 ? NULL : find(buffer, (size_t)received, CTRL_ATTR_FAMILY_ID);
    if (!family) {
        errno = ENOENT;
        return -1;
    }
    memcpy(&one->family, family + 1, sizeof(one->family));
    return 0;
}

int return_open(struct returner* one, enum return_way way, const int* sockets, unsigned int count)
{
    memset(one, 0, sizeof(*one));
    one->way = way;
    one->netlink = -1;
    if (way == by_netlink || way == by_netlink_ack)
        return open_netlink(one);
    for (unsigned int i = 0; way == by_ring && i < count; i++)
        if (open_ring(&one->rings[i], sockets[i]))
            return -1;
    return 0;
}

void return_close(struct returner* one)
{
    for (unsigned int i = 0; i < sizeof(one->rings) / sizeof(one->rings[0]); i++)
        if (one->rings[i].shared)
            munmap(one->rings[i].shared, one->rings[i].size);
    if (one->netlink >= 0)
        close(one->netlink);
}

/* Nothing of it is copied, but once by the kernel. */
static int tell(struct returner* one, int socket, int flags)
{
    struct {
        struct nlmsghdr header;
        struct genlmsghdr command;
        struct nlattr socket;
        uint32_t socket_value;
        struct nlattr tokens;
    } head;
    size_t size = one->used * sizeof(one->ranges[0]);
    struct iovec parts[] = {{&head, sizeof(head)}, {one->ranges, size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    memset(&head, 0, sizeof(head));
    head.header.nlmsg_len = (uint32_t)(sizeof(head) + size);
    head.header.nlmsg_type = one->family;
    head.header.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags);
    head.command.cmd = cmd_return;
    head.command.version = 1;
    head.socket.nla_type = attribute_socket;
    head.socket.nla_len = sizeof(struct nlattr) + sizeof(uint32_t);
    head.socket_value = (uint32_t)socket;
    head.tokens.nla_type = attribute_tokens;
    head.tokens.nla_len = (uint16_t)(sizeof(struct nlattr) + size);
    one->system_calls++;
    return sendmsg(one->netlink, &message, 0) < 0 ? -1 : 0;
}

/* NLM_F_ECHO asks for the answer with the count; without it there is none at all. */
static int flush_netlink(struct returner* one, int socket)
{
    char buffer[256] __attribute__((aligned(8)));
    const struct nlattr* returned;
    uint32_t count = 0;
    ssize_t received;

    if (one->way == by_netlink)
        return tell(one, socket, 0);
    if (tell(one, socket, NLM_F_ECHO))
        return -1;
    received = recv(one->netlink, buffer, sizeof(buffer), 0);
    one->system_calls++;
    if (received < 0)
        return -1;
    returned = find(buffer, (size_t)received, attribute_returned);
    if (returned)
        memcpy(&count, returned + 1, sizeof(count));
    errno = EPROTO;
    return count == one->pages ? 0 : -1;
}

static int flush_setsockopt(struct returner* one, int socket)
{
    for (unsigned int at = 0; at < one->used; at += ranges_per_setsockopt) {
        unsigned int some = one->used - at < ranges_per_setsockopt ? one->used - at : ranges_per_setsockopt;
        unsigned int pages = 0;
        int freed = setsockopt(socket, SOL_SOCKET, so_devmem_dontneed, &one->ranges[at],
                               some * (socklen_t)sizeof(one->ranges[0]));

        one->system_calls++;
        for (unsigned int i = 0; i < some; i++)
            pages += one->ranges[at + i].count;
        if (freed < 0)
            return -1;
        if ((unsigned int)freed != pages) {
            errno = EPROTO;
            return -1;
        }
    }
    return 0;
}

int return_flush(struct returner* one, unsigned int which, int socket)
{
    int result = 0;

    if (one->way == by_ring) {
        __atomic_store_n(&one->rings[which].shared->tail, one->rings[which].tail, __ATOMIC_RELEASE);
        return 0;
    }
    if (one->used)
        result = one->way == by_setsockopt ? flush_setsockopt(one, socket) : flush_netlink(one, socket);
    one->used = 0;
    one->pages = 0;
    return result;
}

static int join(struct token_range* last, struct token_range range)
{
    if (last->first + last->count == range.first) {
        last->count += range.count;
        return 1;
    }
    if (range.first + range.count == last->first) {
        last->first = range.first;
        last->count += range.count;
        return 1;
    }
    return 0;
}

int return_add(struct returner* one, unsigned int which, int socket, struct token_range range)
{
    if (one->way == by_ring) {
        struct return_ring* ring = &one->rings[which];

        for (; range.count; range.count--)
            ring->tokens[ring->tail++ % ring_entries] = range.first++;
        return 0;
    }
    if (one->used == most_ranges || one->pages + range.count > pages_per_setsockopt)
        if (return_flush(one, which, socket))
            return -1;
    one->pages += range.count;
    if (!one->used || one->separate || !join(&one->ranges[one->used - 1], range))
        one->ranges[one->used++] = range;
    return 0;
}
