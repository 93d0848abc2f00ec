// SPDX-License-Identifier: GPL-2.0-only
/* See 2-shared-area.md. Exit status: 0 data was destroyed, 1 it was not, 2 an error. */
#include "zcrx.h"

enum { SIZE = 512 << 10 };

/* How many of the @n pieces are not what was sent */
static int count_wrong(const __u8 *area, const __u8 *data, const struct piece *pieces, int n)
{
	int i, wrong = 0;

	for (i = 0; i < n; data += pieces[i++].len)
		wrong += memcmp(area + pieces[i].at, data, pieces[i].len) != 0;
	return wrong;
}

int main(void)
{
	static struct piece pieces[2][PIECES];
	int dmabuf, flow, id[2], sock[2], n[2] = {}, wrong[2];
	__u8 *area = area_memory(&dmabuf), *data[2];
	struct ring r;

	ring_open(&r);
	for (flow = 0; flow < 2; flow++) {
		id[flow] = ring_take_queue(&r, 2 + flow, dmabuf);
		if (id[flow] < 0) {
			printf("registration %d: %s\n", flow + 1, strerrorname_np(-id[flow]));
			return flow ? 1 : 2;
		}
	}
	/* A flow in each queue. No page is given back, so none may change. */
	for (flow = 0; flow < 2; flow++) {
		data[flow] = stream(flow + 1, SIZE);
		connection(9002 + flow, sock);
		send_queued(sock, data[flow], SIZE);
		if (ring_receive(&r, id[flow], sock[0], SIZE, pieces[flow], &n[flow]))
			errx(2, "flow %d was not received", flow);
		wrong[flow] = count_wrong(area, data[0], pieces[0], n[0]);
	}
	printf("two queues took one memory; of %d held pieces of a flow %d are wrong, ",
	       n[0], wrong[0]);
	printf("and %d after another flow in the other queue\n", wrong[1]);
	return !wrong[1];
}
