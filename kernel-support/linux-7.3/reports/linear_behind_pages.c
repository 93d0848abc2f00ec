// SPDX-License-Identifier: GPL-2.0-only
/* See 4-linear-behind-pages.md. Exit status: 0 some data is for nobody, 1 all came, 2 an error. */
#include "zcrx.h"

enum { SIZE = 1 << 20 };

int main(void)
{
	static struct piece pieces[PIECES];
	static __u8 host[SIZE];
	int dmabuf, id, i, n, got, res, sock[2], at = 0, on_host = 0;
	__u8 *area = area_memory(&dmabuf), *data = stream(1, SIZE);
	struct ring r;

	ring_open(&r);
	CHECK(id = ring_take_queue(&r, 3, dmabuf));
	connection(9003, sock);
	send_queued(sock, data, SIZE);
	do {
		n = 0;
		res = ring_receive(&r, id, sock[0], SIZE - at, pieces, &n);
		for (i = 0; i < n; at += pieces[i++].len)
			if (memcmp(area + pieces[i].at, data + at, pieces[i].len))
				errx(2, "wrong data in pages at %d", at);
		if (!res)
			continue;
		if (res != -ENOMEM)
			errx(2, "RECV_ZC at %d: %s", at, strerrorname_np(-res));
		/* The next byte is not in a page of the area. */
		got = receive_on_host(sock[0], host, SIZE, MSG_SOCK_DEVMEM);
		if (got < 0) {
			printf("%d of %d bytes came, %d of them on the host; of the next one ",
			       at, SIZE, on_host);
			printf("RECV_ZC says %s and recvmsg %s; FIONREAD: %d\n",
			       strerrorname_np(-res), strerrorname_np(-got), queued(sock[0]));
			return 0;
		}
		if (memcmp(host, data + at, got))
			errx(2, "wrong data on the host at %d", at);
		at += got;
		on_host += got;
	} while (at < SIZE);
	printf("all %d bytes came, %d of them on the host\n", at, on_host);
	return 1;
}
