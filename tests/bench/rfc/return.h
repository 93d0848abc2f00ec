/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways to give pages back: SO_DEVMEM_DONTNEED, and those which only the prototypes in
 * kernel-support/linux-7.3/rfc have.
 */
#ifndef GPURX_BENCH_RFC_RETURN_H
#define GPURX_BENCH_RFC_RETURN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum return_way {
    by_setsockopt,
    by_netlink,     /* a message without an answer */
    by_netlink_ack, /* with one, which says how many were returned */
    by_ring,        /* mapped; the kernel takes them when it needs pages or the socket receives */
};

struct token_range {
    uint32_t first;
    uint32_t count;
};

enum { ranges_per_setsockopt = 128, pages_per_setsockopt = 1024, most_ranges = 1024, ring_entries = 16384 };

/* The head of the mapped ring: the kernel writes the first word, the user the second, each on a cache line of its own */
struct return_ring_head {
    uint32_t head;
    uint32_t pad[15];
    uint32_t tail;
    uint32_t pad2[15];
};

struct return_ring {
    struct return_ring_head* shared;
    uint32_t* tokens;
    size_t size;
    uint32_t tail;
};

struct returner {
    enum return_way way;
    int netlink;
    uint16_t family;
    struct return_ring rings[8];
    int separate; /* no two tokens share a range */
    struct token_range ranges[most_ranges];
    unsigned int used;
    unsigned int pages;
    uint64_t system_calls;
};

/* The ring of a socket has to be there before it receives: `sockets` are those of the loop. */
int return_open(struct returner* one, enum return_way way, const int* sockets, unsigned int count);
void return_close(struct returner* one);

/*
 * Puts a token into the list; return_flush() gives all in the list back. `which` is the place of the socket among those
 * of return_open(). 0, or -1 with errno: EPROTO where the kernel did not take all back.
 */
int return_add(struct returner* one, unsigned int which, int socket, struct token_range range);
int return_flush(struct returner* one, unsigned int which, int socket);

#ifdef __cplusplus
}
#endif

#endif
