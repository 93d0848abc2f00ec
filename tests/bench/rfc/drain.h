/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two plain C loops that receive into device memory and give each page back as soon as it was told of: one with
 * recvmsg and cmsgs, one with io_uring's zero-copy receive. The first returns pages in the ways of return.h.
 */
#ifndef GPURX_BENCH_RFC_DRAIN_H
#define GPURX_BENCH_RFC_DRAIN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "return.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { most_flows = 4, fragments_per_call = 128 };

struct drain_counts {
    uint64_t fragments;    /* completions or cmsgs */
    uint64_t pages;        /* what these stand for */
    uint64_t system_calls; /* of all kinds */
};

struct flow {
    int socket;
    int ready;
    uint64_t left; /* bytes that are still to come */
};

struct cmsg_loop {
    struct flow flows[most_flows];
    unsigned int flow_count;
    struct returner returner;
    int epoll;
    size_t control_size;
    size_t host_size;
    char* control;
    char* host;
    struct drain_counts counts;
};

/* All of these return 0, or -1 with errno: EPROTO where something came that cannot come. */
int cmsg_open(struct cmsg_loop* loop, enum return_way way, const int* sockets, unsigned int count);
int cmsg_run(struct cmsg_loop* loop, uint64_t bytes_of_each);
void cmsg_close(struct cmsg_loop* loop);

/* The tokens of one recvmsg, which may have told of as many fragments as there is room for here */
struct fragment_list {
    uint32_t tokens[fragments_per_call];
    unsigned int count;
};

/* One recvmsg that does not wait. Returns what it returns; -1 with EPROTO where bytes came in host memory. */
ssize_t receive_tokens(int socket, struct fragment_list* list);

struct zcrx_queue {
    const char* interface;
    unsigned int queue;
    int dmabuf;
    uint64_t bytes; /* of the dmabuf */
};

struct zcrx_loop {
    int ring;
    unsigned int flow_count;
    int sockets[most_flows];
    unsigned int open_requests;
    /* submissions */
    char* rings;
    size_t rings_size;
    void* submissions;
    size_t submissions_size;
    unsigned int* submission_tail;
    unsigned int submission_mask;
    /* completions of 32 bytes */
    unsigned int* completion_head;
    unsigned int* completion_tail;
    unsigned int completion_mask;
    const char* completions;
    /* pages that go back */
    char* refill;
    size_t refill_size;
    unsigned int* refill_tail;
    unsigned int refill_mask;
    char* refill_entries;
    uint64_t area;
    struct drain_counts counts;
    uint64_t rearmed; /* requests that ended before all bytes had come: the completion ring was full */
};

int zcrx_open(struct zcrx_loop* loop, const struct zcrx_queue* where);
int zcrx_run(struct zcrx_loop* loop, const int* sockets, unsigned int count, uint64_t bytes_of_each);
void zcrx_close(struct zcrx_loop* loop);

#ifdef __cplusplus
}
#endif

#endif
