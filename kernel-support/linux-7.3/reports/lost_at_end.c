// SPDX-License-Identifier: GPL-2.0-only
/* See 3-lost-at-end.md. Exit status: 0 the data is lost, 1 it is not, 2 an error. */
#include "zcrx.h"

enum { SIZE = 64 << 10 };

static const char *name(int result)
{
	return result < 0 ? strerrorname_np(-result) : "ok";
}

int main(void)
{
	static struct piece pieces[PIECES];
	static __u8 data[SIZE];
	int dmabuf, id, sock[2], n = 0, plain, devmem, ring;
	struct ring r;

	area_memory(&dmabuf);
	ring_open(&r);
	CHECK(ring_take_queue(&r, 3, dmabuf));
	connection(9003, sock);
	send_queued(sock, stream(1, SIZE), SIZE);
	ring_close(&r);

	ring_open(&r);
	while ((id = ring_take_queue(&r, 3, dmabuf)) == -EEXIST)
		usleep(1000);
	if (id < 0)
		errx(2, "the queue again: %s", name(id));
	plain = receive_on_host(sock[0], data, SIZE, 0);
	devmem = receive_on_host(sock[0], data, SIZE, MSG_SOCK_DEVMEM);
	ring = ring_receive(&r, id, sock[0], SIZE, pieces, &n);
	printf("%d bytes were queued when the ring ended. recvmsg: %s, with MSG_SOCK_DEVMEM: %s, ",
	       SIZE, name(plain), name(devmem));
	printf("RECV_ZC of a new ring: %s. FIONREAD: %d, ", name(ring), queued(sock[0]));
	printf("MSG_TRUNC: %zd\n", recv(sock[0], NULL, SIZE, MSG_TRUNC | MSG_DONTWAIT));
	return plain >= 0 || devmem >= 0 || n > 0;
}
