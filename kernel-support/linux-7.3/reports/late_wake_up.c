// SPDX-License-Identifier: GPL-2.0-only
/* See 1-late-wake-up.md. Exit status: 0 the wake-up is late, 1 it is not, 2 an error. */
#include <err.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x) ((x) < 0 ? err(2, "%s", #x) : (void)0)
#define MAP(fd, at) mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at)
enum { ROUNDS = 20 };

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

int main(int argc, char **argv)
{
	struct io_uring_params p = { .flags = IORING_SETUP_SINGLE_ISSUER |
					      IORING_SETUP_DEFER_TASKRUN };
	int ring = syscall(SYS_io_uring_setup, 4, &p), ep = epoll_create1(0), fd = ring;
	char *rings = MAP(ring, IORING_OFF_SQ_RING), c;
	struct io_uring_sqe *sqe = MAP(ring, IORING_OFF_SQES);
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	double start, answered = 0, woken = 0;
	int a[2], b[2], i, late = 0, never = 0;

	if (argc > 1 && *argv[1] == 'e') {
		CHECK(fd = eventfd(0, 0));
		CHECK(syscall(SYS_io_uring_register, ring, IORING_REGISTER_EVENTFD, &fd, 1));
	}
	CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, a));
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, b));
	if (!fork())
		for (close(b[0]);;)		/* answers each byte */
			if (read(b[1], &c, 1) != 1 || write(b[1], &c, 1) != 1)
				_exit(0);
	for (i = 0; i < ROUNDS; i++) {
		*sqe = (struct io_uring_sqe){ .opcode = IORING_OP_RECV, .fd = a[0],
					      .addr = (long)&c, .len = 1 };
		__atomic_fetch_add((int *)(rings + p.sq_off.tail), 1, __ATOMIC_RELEASE);
		CHECK(syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0));
		while (epoll_wait(ep, &ev, 1, 0) > 0)
			;			/* from the round before */
		start = now_us();
		CHECK(write(a[1], "a", 1));	/* the request waits for this */
		CHECK(write(b[0], "b", 1));
		CHECK(read(b[0], &c, 1));
		answered += now_us() - start;
		if (epoll_wait(ep, &ev, 1, 0) == 0) {
			late++;
			never += epoll_wait(ep, &ev, 1, 1000) == 0;
		}
		woken += now_us() - start;
		CHECK(syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0));
		__atomic_fetch_add((int *)(rings + p.cq_off.head), 1, __ATOMIC_RELEASE);
	}
	printf("%s: another process answered first in %d of %d rounds, after %.0f us; ",
	       fd == ring ? "ring" : "eventfd", late, ROUNDS, answered / ROUNDS);
	printf("epoll woke after %.0f us, in %d not within 1 s\n", woken / ROUNDS, never);
	return late <= ROUNDS / 2;
}
