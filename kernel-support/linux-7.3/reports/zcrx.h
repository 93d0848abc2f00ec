/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A ring with queues of the NIC dms0, over system calls. The NIC's address is
 * 10.77.0.1; the other end of its wire is in the network namespace "peer". An
 * error ends the program with status 2.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/udmabuf.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(x) ((long)(x) < 0 ? err(2, "%s", #x) : (void)0)
#define MSG_SOCK_DEVMEM 0x2000000

enum { PIECES = 4096, REFILL_ENTRIES = 4096, AREA = 8 << 20 };

struct piece {
	size_t at;	/* in the area */
	int len;
};

struct ring {
	int fd;
	char *rings;
	size_t size;
	struct io_uring_sqe *sqes;
	struct io_uring_params p;
};

static inline void *map(int fd, size_t size, off_t at)
{
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, at);

	CHECK(mapped == MAP_FAILED ? -1 : 0);
	return mapped;
}

/* Memory of an area, and a dmabuf of it */
static inline __u8 *area_memory(int *dmabuf)
{
	struct udmabuf_create create = { .size = AREA };

	CHECK(create.memfd = memfd_create("area", MFD_ALLOW_SEALING));
	CHECK(ftruncate(create.memfd, AREA));
	CHECK(fcntl(create.memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	CHECK(*dmabuf = ioctl(open("/dev/udmabuf", O_RDWR), UDMABUF_CREATE, &create));
	return map(*dmabuf, AREA, 0);
}

static inline void ring_open(struct ring *r)
{
	r->p = (struct io_uring_params){
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			 IORING_SETUP_CQE32 | IORING_SETUP_CQSIZE,
		.cq_entries = PIECES,
	};
	CHECK(r->fd = syscall(SYS_io_uring_setup, 1, &r->p));
	r->size = r->p.cq_off.cqes + PIECES * 2 * sizeof(struct io_uring_cqe) + 4096;
	r->rings = map(r->fd, r->size, IORING_OFF_SQ_RING);
	r->sqes = map(r->fd, 4096, IORING_OFF_SQES);
}

static inline void ring_close(struct ring *r)
{
	munmap(r->rings, r->size);
	munmap(r->sqes, 4096);
	close(r->fd);
}

/* The id of a queue of the NIC with this area, or -errno */
static inline int ring_take_queue(struct ring *r, int queue, int dmabuf)
{
	struct io_uring_region_desc refill = {
		.size = REFILL_ENTRIES * sizeof(struct io_uring_zcrx_rqe) + 4096,
		.flags = IORING_MEM_REGION_TYPE_USER,
	};
	struct io_uring_zcrx_area_reg area = {
		.len = AREA, .flags = IORING_ZCRX_AREA_DMABUF, .dmabuf_fd = dmabuf,
	};
	struct io_uring_zcrx_ifq_reg reg = {
		.if_idx = if_nametoindex("dms0"), .if_rxq = queue, .rq_entries = REFILL_ENTRIES,
		.area_ptr = (long)&area, .region_ptr = (long)&refill,
	};

	refill.user_addr = (long)map(-1, refill.size, 0);
	if (syscall(SYS_io_uring_register, r->fd, IORING_REGISTER_ZCRX_IFQ, &reg, 1))
		return -errno;
	return reg.zcrx_id;
}

/*
 * RECV_ZC of @len bytes. Adds to the *@n @pieces, and returns the result of the
 * last completion: 0 or -errno. No page is given back.
 */
static inline int ring_receive(struct ring *r, int id, int sock, size_t len,
			       struct piece *pieces, int *n)
{
	unsigned int *head = (unsigned int *)(r->rings + r->p.cq_off.head);
	unsigned int *tail = (unsigned int *)(r->rings + r->p.cq_off.tail);
	struct io_uring_cqe *cqe;
	int submit = 1, last;

	*r->sqes = (struct io_uring_sqe){
		.opcode = IORING_OP_RECV_ZC, .ioprio = IORING_RECV_MULTISHOT,
		.fd = sock, .len = len, .zcrx_ifq_idx = id,
	};
	__atomic_fetch_add((int *)(r->rings + r->p.sq_off.tail), 1, __ATOMIC_RELEASE);
	do {
		while (*head == __atomic_load_n(tail, __ATOMIC_ACQUIRE)) {
			CHECK(syscall(SYS_io_uring_enter, r->fd, submit, 1,
				      IORING_ENTER_GETEVENTS, NULL, 0));
			submit = 0;
		}
		cqe = (struct io_uring_cqe *)(r->rings + r->p.cq_off.cqes);
		cqe += 2 * (*head & (r->p.cq_entries - 1));
		last = !(cqe->flags & IORING_CQE_F_MORE);
		if (!last) {
			pieces[*n].at = cqe->big_cqe[0] & ~IORING_ZCRX_AREA_MASK;
			pieces[(*n)++].len = cqe->res;
		}
		__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	} while (!last);
	return cqe->res;
}

/* The number of bytes that recvmsg puts into @data, or -errno */
static inline int receive_on_host(int sock, void *data, size_t size, int flags)
{
	char control[4096];
	struct iovec to = { data, size };
	struct msghdr msg = {
		.msg_iov = &to, .msg_iovlen = 1,
		.msg_control = control, .msg_controllen = sizeof(control),
	};
	ssize_t n = recvmsg(sock, &msg, flags | MSG_DONTWAIT);

	return n < 0 ? -errno : n;
}

/* sock[0]: a connection to @port of the NIC. sock[1]: its other end */
static inline void connection(int port, int sock[2])
{
	struct sockaddr_in to = {
		.sin_family = AF_INET, .sin_port = htons(port),
		.sin_addr.s_addr = inet_addr("10.77.0.1"),
	};
	int here = open("/proc/self/ns/net", O_RDONLY), there = open("/run/netns/peer", O_RDONLY);
	int listener = socket(AF_INET, SOCK_STREAM, 0), size = 8 << 20, on = 1;

	CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)));
	CHECK(bind(listener, (struct sockaddr *)&to, sizeof(to)));
	CHECK(listen(listener, 1));
	CHECK(setns(there, CLONE_NEWNET));
	CHECK(sock[1] = socket(AF_INET, SOCK_STREAM, 0));
	CHECK(setns(here, CLONE_NEWNET));
	CHECK(setsockopt(sock[1], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)));
	CHECK(connect(sock[1], (struct sockaddr *)&to, sizeof(to)));
	CHECK(sock[0] = accept(listener, NULL, NULL));
}

static inline int queued(int sock)
{
	int n;

	CHECK(ioctl(sock, FIONREAD, &n));
	return n;
}

/* @size bytes that differ from those of any other @flow */
static inline __u8 *stream(__u32 flow, size_t size)
{
	__u32 *data = malloc(size);
	size_t i;

	for (i = 0; i < size / 4; i++)
		data[i] = flow << 24 | i;
	return (__u8 *)data;
}

/* Sends them, and waits until all are queued. */
static inline void send_queued(int sock[2], const __u8 *data, int size)
{
	CHECK(write(sock[1], data, size) == size ? 0 : -1);
	while (queued(sock[0]) < size)
		usleep(1000);
}
