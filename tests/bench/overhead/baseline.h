/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hand-written loop that gpurx is measured against: epoll, recvmsg, batched SO_DEVMEM_DONTNEED. What a careful C
 * programmer would write for one flow, with no error recovery beyond stopping.
 */
#ifndef GPURX_BENCH_BASELINE_H
#define GPURX_BENCH_BASELINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct baseline {
    int epoll;
    int socket;
    char* control;
    size_t control_size;
    char* host;
    size_t host_size;
    int drained; /* the last call has taken all there was */
    /* results, added up */
    uint64_t fragments;
    uint64_t receive_calls;
    uint64_t release_calls;
    uint64_t host_bytes;
};

/* Returns 0 or -1 with errno set. The socket must be non-blocking and stays the caller's. */
int baseline_open(struct baseline* loop, int socket);
void baseline_close(struct baseline* loop);

/* Receives `bytes` bytes and gives every page back. Returns 0, or -1 with errno set: EPIPE if the stream ends early. */
int baseline_run(struct baseline* loop, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
