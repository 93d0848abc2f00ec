/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two system calls that are measured, with nothing of a library around them: recvmsg with MSG_SOCK_DEVMEM, and
 * SO_DEVMEM_DONTNEED. Only the call itself lies between the two readings of the clock; fragments are taken apart and
 * ranges are put together outside.
 */
#ifndef GPURX_BENCH_TOKENS_CALLS_H
#define GPURX_BENCH_TOKENS_CALLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { release_most_ranges = 128 };

struct fragment {
    uint64_t offset;
    uint32_t size;
    uint32_t token;
    uint32_t dmabuf_id;
    uint32_t flags;
};

struct receive_buffers {
    char* control;
    size_t control_bytes; /* room in `control` */
    char* host;           /* for bytes that are not in device memory; there should be none */
    size_t host_bytes;
};

/* The time stamp counter. Under --exact it counts instructions of the guest. */
uint64_t read_clock(void);

/* The control bytes that hold this many fragments and not one more. */
size_t control_for(unsigned int fragments);

/*
 * One recvmsg, with `flags` (MSG_PEEK or none). Returns what it returns, with the instructions it took, and puts the
 * fragments at `into`. -1 with errno EPROTO where bytes came in host memory.
 */
ssize_t receive_once(int socket, int flags, const struct receive_buffers* buffers, struct fragment* into,
                     unsigned int* fragments, uint64_t* instructions);

/*
 * One SO_DEVMEM_DONTNEED for `count` (at most 128) tokens; neighbours in the list that have consecutive tokens share a
 * range. Returns 0, with the instructions and the ranges it took, or -1 with errno: EPROTO where the kernel did not
 * take back all.
 */
int release_once(int socket, const uint32_t* tokens, unsigned int count, unsigned int* ranges, uint64_t* instructions);

#ifdef __cplusplus
}
#endif

#endif
