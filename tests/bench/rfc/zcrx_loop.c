/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/io_uring.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "drain.h"

/* Linux 7.3: include/uapi/linux/io_uring.h and include/uapi/linux/io_uring/zcrx.h; older headers do not have it. */
enum {
    op_recv_zc = 58,
    recv_multishot = 1 << 1,
    register_zcrx_ifq = 32,
    region_of_user = 1,
    area_is_dmabuf = 1,
    area_shift = 48,
};

struct region {
    uint64_t user_address;
    uint64_t size;
    uint32_t flags;
    uint32_t id;
    uint64_t mmap_offset;
    uint64_t reserved[4];
};

struct area {
    uint64_t address;
    uint64_t length;
    uint64_t refill_token;
    uint32_t flags;
    uint32_t dmabuf;
    uint64_t reserved[2];
};

struct interface_queue {
    uint32_t interface;
    uint32_t queue;
    uint32_t refill_entries;
    uint32_t flags;
    uint64_t area;
    uint64_t region;
    uint32_t head_offset, tail_offset, entries_offset, offsets_reserved;
    uint64_t offsets_reserved2[2];
    uint32_t id;
    uint32_t buffer_length;
    uint64_t event;
    uint64_t reserved[2];
};

struct refill_entry {
    uint64_t offset;
    uint32_t length;
    uint32_t pad;
};

struct completion {
    uint64_t user_data;
    int32_t result;
    uint32_t flags;
    uint64_t offset;
    uint64_t pad;
};

/* Completions must never be more than their ring holds, and no page that is given back may find its ring full. */
enum { submission_entries = 8, completion_entries = 8192, refill_entries = 16384 };

static int map_ring(struct zcrx_loop* loop, const struct io_uring_params* made)
{
    const struct io_sqring_offsets* submit = &made->sq_off;
    const struct io_cqring_offsets* complete = &made->cq_off;
    unsigned int* array;

    loop->rings_size = complete->cqes + made->cq_entries * sizeof(struct completion);
    if (submit->array + made->sq_entries * sizeof(uint32_t) > loop->rings_size)
        loop->rings_size = submit->array + made->sq_entries * sizeof(uint32_t);
    loop->rings =
        mmap(NULL, loop->rings_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, loop->ring, IORING_OFF_SQ_RING);
    loop->submissions_size = made->sq_entries * sizeof(struct io_uring_sqe);
    loop->submissions = mmap(NULL, loop->submissions_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                             loop->ring, IORING_OFF_SQES);
    if (loop->rings == MAP_FAILED || loop->submissions == MAP_FAILED)
        return -1;
    array = (unsigned int*)(loop->rings + submit->array);
    for (unsigned int i = 0; i < made->sq_entries; i++)
        array[i] = i;
    loop->submission_tail = (unsigned int*)(loop->rings + submit->tail);
    loop->submission_mask = made->sq_entries - 1;
    loop->completion_head = (unsigned int*)(loop->rings + complete->head);
    loop->completion_tail = (unsigned int*)(loop->rings + complete->tail);
    loop->completion_mask = made->cq_entries - 1;
    loop->completions = loop->rings + complete->cqes;
    return 0;
}

static int register_queue(struct zcrx_loop* loop, const struct zcrx_queue* where)
{
    struct area area = {.length = where->bytes, .flags = area_is_dmabuf, .dmabuf = (uint32_t)where->dmabuf};
    struct region region = {.flags = region_of_user};
    struct interface_queue what = {
        .interface = if_nametoindex(where->interface),
        .queue = where->queue,
        .refill_entries = refill_entries,
        .area = (uint64_t)(uintptr_t)&area,
        .region = (uint64_t)(uintptr_t)&region,
    };

    loop->refill_size = refill_entries * sizeof(struct refill_entry) + (size_t)sysconf(_SC_PAGESIZE);
    loop->refill =
        mmap(NULL, loop->refill_size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE | MAP_POPULATE, -1, 0);
    if (loop->refill == MAP_FAILED)
        return -1;
    region.user_address = (uint64_t)(uintptr_t)loop->refill;
    region.size = loop->refill_size;
    if (syscall(SYS_io_uring_register, loop->ring, register_zcrx_ifq, &what, 1))
        return -1;
    loop->refill_tail = (unsigned int*)(loop->refill + what.tail_offset);
    loop->refill_entries = loop->refill + what.entries_offset;
    loop->refill_mask = what.refill_entries - 1;
    loop->area = area.refill_token;
    return 0;
}

int zcrx_open(struct zcrx_loop* loop, const struct zcrx_queue* where)
{
    struct io_uring_params params = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQE32 | IORING_SETUP_CQSIZE,
        .cq_entries = completion_entries,
    };

    memset(loop, 0, sizeof(*loop));
    loop->ring = (int)syscall(SYS_io_uring_setup, submission_entries, &params);
    if (loop->ring < 0)
        return -1;
    return map_ring(loop, &params) || register_queue(loop, where) ? -1 : 0;
}

void zcrx_close(struct zcrx_loop* loop)
{
    munmap(loop->rings, loop->rings_size);
    munmap(loop->submissions, loop->submissions_size);
    close(loop->ring);
    munmap(loop->refill, loop->refill_size);
}

/* A request that ends when so many bytes have come. */
static void request(struct zcrx_loop* loop, unsigned int which, uint64_t bytes)
{
    unsigned int tail = *loop->submission_tail;
    struct io_uring_sqe* entry = (struct io_uring_sqe*)loop->submissions + (tail & loop->submission_mask);

    memset(entry, 0, sizeof(*entry));
    entry->opcode = op_recv_zc;
    entry->fd = loop->sockets[which];
    entry->len = (uint32_t)bytes;
    entry->ioprio = recv_multishot;
    entry->user_data = which;
    __atomic_store_n(loop->submission_tail, tail + 1, __ATOMIC_RELEASE);
    loop->open_requests++;
}

static void give_back(struct zcrx_loop* loop, unsigned int tail, const struct completion* what)
{
    struct refill_entry* entry = (struct refill_entry*)loop->refill_entries + (tail & loop->refill_mask);

    entry->offset = (what->offset & ((UINT64_C(1) << area_shift) - 1)) | loop->area;
    entry->length = (uint32_t)what->result;
    entry->pad = 0;
}

/* Takes all completions; the pages go back together. */
static int take_completions(struct zcrx_loop* loop, uint64_t* left)
{
    unsigned int head = *loop->completion_head;
    unsigned int tail = __atomic_load_n(loop->completion_tail, __ATOMIC_ACQUIRE);
    unsigned int refill_tail = *loop->refill_tail;

    for (; head != tail; head++) {
        const struct completion* one = (const struct completion*)loop->completions + (head & loop->completion_mask);

        if (one->result < 0 && one->result != -ENOSPC) {
            errno = -one->result;
            return -1;
        }
        if (one->result > 0) {
            give_back(loop, refill_tail++, one);
            loop->counts.fragments++;
            left[one->user_data] -= (uint64_t)one->result;
        }
        if (!(one->flags & IORING_CQE_F_MORE)) {
            loop->open_requests--;
            if (left[one->user_data]) {
                loop->rearmed++;
                request(loop, (unsigned int)one->user_data, left[one->user_data]);
            }
        }
    }
    __atomic_store_n(loop->refill_tail, refill_tail, __ATOMIC_RELEASE);
    __atomic_store_n(loop->completion_head, head, __ATOMIC_RELEASE);
    return 0;
}

int zcrx_run(struct zcrx_loop* loop, const int* sockets, unsigned int count, uint64_t bytes_of_each)
{
    uint64_t left[most_flows];
    unsigned int submitted = *loop->submission_tail;

    for (unsigned int i = 0; i < count; i++) {
        loop->sockets[i] = sockets[i];
        left[i] = bytes_of_each;
        request(loop, i, bytes_of_each);
    }
    while (loop->open_requests) {
        unsigned int submit = *loop->submission_tail - submitted;
        long done = syscall(SYS_io_uring_enter, loop->ring, submit, 1, IORING_ENTER_GETEVENTS, NULL, 0);

        loop->counts.system_calls++;
        if (done < 0 && errno != EINTR)
            return -1;
        submitted += done < 0 ? 0 : (unsigned int)done;
        if (take_completions(loop, left))
            return -1;
    }
    loop->counts.pages = loop->counts.fragments;
    return 0;
}
