// SPDX-License-Identifier: GPL-2.0-only
/*
 * Hardware GRO: TCP segments of a flow that follow each other on the wire are
 * made one large packet before NAPI sees them.
 *
 * The rules are those of the stack's GRO, so that the stack can take the packet
 * apart again and get what was sent. All that came in since NAPI looked last is
 * worked on in one go, and nothing waits for more: how much there is to merge
 * is up to interrupt moderation.
 */
#include <linux/etherdevice.h>
#include <linux/hash.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/list.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/slab.h>
#include <linux/tcp.h>
#include <net/ip.h>
#include <net/ipv6.h>
#include <net/tcp.h>

#include "devmemsim.h"
#include "devmemsim_gro.h"

/* Flows that are merged at a time. The oldest makes room for a new one. */
#define DMS_GRO_FLOWS		512
#define DMS_GRO_HASH_BITS	8

/**
 * struct dms_gro_flow - segments which are going to be one packet
 * @node:	in a bucket of &dms_gro.bucket
 * @age:	in &dms_gro.used or &dms_gro.free
 * @frames:	the segments, in order
 * @hash:	&dms_gro_hdr.hash of all of them
 * @next_seq:	sequence number that continues them
 * @last_flags:	&dms_gro_hdr.last_flags of the last one
 * @payload:	bytes of payload
 * @mss:	payload of all but the last
 * @len:	length of the headers
 * @th_off:	start of the TCP header
 * @ip:		IP headers of the first one
 * @n_ip:	number of @ip
 * @fixed_id:	bit per IP header: the IDs are all the same, they do not count up
 */
struct dms_gro_flow {
	struct hlist_node node;
	struct list_head age;
	struct sk_buff_head frames;
	u32 hash;
	u32 next_seq;
	__be32 last_flags;
	unsigned int payload;
	u16 mss;
	u16 len;
	u16 th_off;
	struct dms_gro_ip ip[DMS_GRO_MAX_IP];
	u8 n_ip;
	u8 fixed_id;
};

/**
 * struct dms_gro - what an Rx queue merges, empty between polls
 * @bucket:	flows by hash
 * @used:	flows that have segments, the oldest first
 * @free:	flows that have none
 * @flow:	the flows
 */
struct dms_gro {
	struct hlist_head bucket[1 << DMS_GRO_HASH_BITS];
	struct list_head used;
	struct list_head free;
	struct dms_gro_flow flow[DMS_GRO_FLOWS];
};

int dms_gro_alloc(struct dms_channel *ch)
{
	struct dms_gro *gro;
	unsigned int i;

	gro = kvzalloc_obj(*gro, GFP_KERNEL);
	if (!gro)
		return -ENOMEM;

	INIT_LIST_HEAD(&gro->used);
	INIT_LIST_HEAD(&gro->free);
	for (i = 0; i < DMS_GRO_FLOWS; i++) {
		__skb_queue_head_init(&gro->flow[i].frames);
		list_add_tail(&gro->flow[i].age, &gro->free);
	}

	ch->gro = gro;
	return 0;
}

void dms_gro_free(struct dms_channel *ch)
{
	kvfree(ch->gro);
	ch->gro = NULL;
}

static bool dms_gro_id_follows(const struct dms_gro_flow *flow,
			       const struct dms_gro_hdr *hdr, u8 *fixed_id)
{
	u32 count = skb_queue_len(&flow->frames);
	unsigned int i;
	u16 diff;

	*fixed_id = flow->fixed_id;
	for (i = 0; i < hdr->n_ip; i++) {
		if (hdr->ip[i].version != 4)
			continue;

		/* The second one tells which way it goes */
		diff = hdr->ip[i].id - flow->ip[i].id;
		if (count == 1 && !diff)
			*fixed_id |= BIT(i);
		if (diff != (*fixed_id & BIT(i) ? 0 : (u16)count))
			return false;
	}

	return true;
}

/* Does a frame continue the segments of a flow? */
static bool dms_gro_follows(const struct dms_gro_flow *flow,
			    const struct dms_gro_hdr *hdr, u8 *fixed_id)
{
	unsigned int payload = hdr->end - hdr->len;
	struct dms_gro_hdr first;

	if (hdr->seq != flow->next_seq || hdr->len != flow->len ||
	    hdr->n_ip != flow->n_ip || payload > flow->mss)
		return false;
	if (flow->len - flow->ip[0].off + flow->payload + payload >
	    IP_MAX_MTU)
		return false;
	if (!dms_gro_id_follows(flow, hdr, fixed_id))
		return false;

	dms_gro_parse(skb_peek(&flow->frames), &first);
	return !memcmp(first.data, hdr->data, hdr->len);
}

/* Copy payload of a frame to position @pos behind the headers of a packet */
static int dms_gro_copy(struct sk_buff *skb, unsigned int pos,
			const struct sk_buff *frame, unsigned int offset,
			unsigned int len)
{
	unsigned int size, n;
	skb_frag_t *frag;
	int i, err;

	for (i = 0; len && i < skb_shinfo(skb)->nr_frags; i++) {
		frag = &skb_shinfo(skb)->frags[i];
		size = skb_frag_size(frag);
		if (pos >= size) {
			pos -= size;
			continue;
		}

		n = min(len, size - pos);
		err = dms_dma_read(frame, offset, skb_frag_address(frag) + pos,
				   n);
		if (err)
			return err;

		offset += n;
		len -= n;
		pos = 0;
	}

	return len ? -EFAULT : 0;
}

/* Lengths and sums of the headers, which are those of the first segment */
static void dms_gro_fix_headers(const struct dms_gro_flow *flow,
				struct sk_buff *skb)
{
	struct tcphdr *th = (struct tcphdr *)(skb->data + flow->th_off);
	unsigned int i;

	for (i = 0; i < flow->n_ip; i++) {
		void *header = skb->data + flow->ip[i].off;
		unsigned int len = skb->len - flow->ip[i].off;

		if (flow->ip[i].version == 4) {
			((struct iphdr *)header)->tot_len = htons(len);
			ip_send_check(header);
		} else {
			len -= sizeof(struct ipv6hdr);
			((struct ipv6hdr *)header)->payload_len = htons(len);
		}
	}

	tcp_flag_word(th) |= flow->last_flags;
	th->check = dms_gro_pseudo(skb->data, &flow->ip[flow->n_ip - 1],
				   skb->len - flow->th_off);

	skb->ip_summed = CHECKSUM_PARTIAL;
	skb->csum_start = skb_headroom(skb) + flow->th_off;
	skb->csum_offset = offsetof(struct tcphdr, check);
}

/* Say how the packet is to be taken apart */
static void dms_gro_set_gso(const struct dms_gro_flow *flow,
			    struct sk_buff *skb)
{
	const struct tcphdr *th = (struct tcphdr *)(skb->data + flow->th_off);
	const struct dms_gro_ip *inner = &flow->ip[flow->n_ip - 1];
	struct skb_shared_info *shinfo = skb_shinfo(skb);

	shinfo->gso_size = flow->mss;
	shinfo->gso_segs = skb_queue_len(&flow->frames);
	shinfo->gso_type = inner->version == 4 ? SKB_GSO_TCPV4 : SKB_GSO_TCPV6;
	if (flow->fixed_id & BIT(0))
		shinfo->gso_type |= SKB_GSO_TCP_FIXEDID;
	if (flow->fixed_id & BIT(1))
		shinfo->gso_type |= SKB_GSO_TCP_FIXEDID_INNER;
	if (th->cwr)
		shinfo->gso_type |= SKB_GSO_TCP_ACCECN;

	skb_reset_mac_header(skb);
	skb_set_network_header(skb, flow->ip[0].off);
	if (flow->n_ip == 1) {
		skb_set_transport_header(skb, flow->th_off);
		return;
	}

	shinfo->gso_type |= flow->ip[0].version == 4 ? SKB_GSO_IPXIP4 :
						       SKB_GSO_IPXIP6;
	skb->encapsulation = 1;
	skb_set_inner_protocol(skb, htons(inner->version == 4 ? ETH_P_IP :
								ETH_P_IPV6));
	skb_set_inner_network_header(skb, inner->off);
	skb_set_inner_transport_header(skb, flow->th_off);
}

/* The segments may share their data with others, so copy them.
 * Return: a large frame, or NULL if there is no memory for it
 */
static struct sk_buff *dms_gro_build(const struct dms_gro_flow *flow)
{
	const struct sk_buff *first = skb_peek(&flow->frames);
	const struct sk_buff *frame;
	unsigned int pos = 0, n;
	struct sk_buff *skb;
	int err;

	skb = alloc_skb_with_frags(NET_IP_ALIGN + flow->len, flow->payload,
				   PAGE_ALLOC_COSTLY_ORDER, &err,
				   GFP_ATOMIC | __GFP_NOWARN);
	if (!skb)
		return NULL;

	skb_reserve(skb, NET_IP_ALIGN);
	if (dms_dma_read(first, 0, skb_put(skb, flow->len), flow->len))
		goto err_free;

	skb_queue_walk(&flow->frames, frame) {
		n = min(flow->payload - pos, flow->mss);
		if (dms_gro_copy(skb, pos, frame, flow->len, n))
			goto err_free;
		pos += n;
	}

	skb->data_len = flow->payload;
	skb->len += flow->payload;
	dms_gro_fix_headers(flow, skb);
	dms_gro_set_gso(flow, skb);

	/* On its way it is what the first one was, up to the completion */
	skb->dev = first->dev;
	skb->protocol = first->protocol;
	skb_set_queue_mapping(skb, skb_get_queue_mapping(first));
	*DMS_FRAME_CB(skb) = *DMS_FRAME_CB(first);
	DMS_FRAME_CB(skb)->csum = DMS_CSUM_PARTIAL;
	DMS_FRAME_CB(skb)->repeat_len = flow->len;
	return skb;

err_free:
	kfree_skb(skb);
	return NULL;
}

/* Hand a flow to NAPI, as one packet if there is more than one segment */
static void dms_gro_flush(struct dms_channel *ch, struct dms_gro_flow *flow,
			  int budget)
{
	struct sk_buff *skb, *frame;

	hlist_del(&flow->node);
	list_move(&flow->age, &ch->gro->free);

	skb = skb_queue_len(&flow->frames) > 1 ? dms_gro_build(flow) : NULL;
	if (!skb) {
		skb_queue_splice_tail_init(&flow->frames, &ch->backlog);
		return;
	}

	napi_consume_skb(__skb_dequeue(&flow->frames), budget);
	while ((frame = __skb_dequeue(&flow->frames)))
		dms_tx_complete(frame, budget);
	__skb_queue_tail(&ch->backlog, skb);
}

static void dms_gro_flush_all(struct dms_channel *ch, int budget)
{
	struct dms_gro_flow *flow, *next;

	list_for_each_entry_safe(flow, next, &ch->gro->used, age)
		dms_gro_flush(ch, flow, budget);
}

static struct hlist_head *dms_gro_bucket(struct dms_gro *gro, u32 hash)
{
	return &gro->bucket[hash_32(hash, DMS_GRO_HASH_BITS)];
}

/* Flows with the same hash are one to us, so that they cannot be merged at the
 * same time.
 */
static struct dms_gro_flow *dms_gro_find(struct dms_gro *gro, u32 hash)
{
	struct dms_gro_flow *flow;

	hlist_for_each_entry(flow, dms_gro_bucket(gro, hash), node)
		if (flow->hash == hash)
			return flow;

	return NULL;
}

static void dms_gro_append(struct dms_gro_flow *flow,
			   const struct dms_gro_hdr *hdr, struct sk_buff *frame)
{
	unsigned int payload = hdr->end - hdr->len;

	flow->payload += payload;
	flow->next_seq = hdr->seq + payload;
	flow->last_flags = hdr->last_flags;
	__skb_queue_tail(&flow->frames, frame);
}

static void dms_gro_start(struct dms_channel *ch, const struct dms_gro_hdr *hdr,
			  struct sk_buff *frame, int budget)
{
	struct dms_gro *gro = ch->gro;
	struct dms_gro_flow *flow;

	if (list_empty(&gro->free))
		dms_gro_flush(ch, list_first_entry(&gro->used,
						   struct dms_gro_flow, age),
			      budget);

	flow = list_first_entry(&gro->free, struct dms_gro_flow, age);
	list_move_tail(&flow->age, &gro->used);
	hlist_add_head(&flow->node, dms_gro_bucket(gro, hdr->hash));

	flow->hash = hdr->hash;
	flow->payload = 0;
	flow->mss = hdr->end - hdr->len;
	flow->len = hdr->len;
	flow->th_off = hdr->th_off;
	memcpy(flow->ip, hdr->ip, sizeof(flow->ip));
	flow->n_ip = hdr->n_ip;
	flow->fixed_id = 0;
	dms_gro_append(flow, hdr, frame);
}

static void dms_gro_add(struct dms_channel *ch, struct sk_buff *frame,
			int budget)
{
	struct dms_gro_flow *flow = NULL;
	enum dms_gro_kind kind;
	struct dms_gro_hdr hdr;
	u8 fixed_id;

	kind = dms_gro_parse(frame, &hdr);
	if (kind == DMS_GRO_DATA &&
	    (skb_is_gso(frame) || DMS_FRAME_CB(frame)->released ||
	     !dms_gro_csum_good(frame, &hdr)))
		kind = DMS_GRO_TCP;

	if (kind == DMS_GRO_FRAGMENT)
		dms_gro_flush_all(ch, budget);
	else if (kind != DMS_GRO_OTHER)
		flow = dms_gro_find(ch->gro, hdr.hash);

	if (flow && kind == DMS_GRO_DATA &&
	    dms_gro_follows(flow, &hdr, &fixed_id)) {
		flow->fixed_id = fixed_id;
		dms_gro_append(flow, &hdr, frame);
		if (hdr.last_flags || hdr.end - hdr.len < flow->mss)
			dms_gro_flush(ch, flow, budget);
		return;
	}

	if (flow)
		dms_gro_flush(ch, flow, budget);

	if (kind == DMS_GRO_DATA && !hdr.last_flags)
		dms_gro_start(ch, &hdr, frame, budget);
	else
		__skb_queue_tail(&ch->backlog, frame);
}

/* A quick look at whether there can be anything to merge. Packets in tunnels
 * are among those whose ports are not known.
 */
static bool dms_gro_worthwhile(const struct sk_buff_head *frames)
{
	const struct sk_buff *frame;
	unsigned int n = 0;

	skb_queue_walk(frames, frame) {
		const struct dms_frame_cb *cb = DMS_FRAME_CB(frame);

		if (skb_is_gso(frame))
			continue;
		if (cb->header_len ? frame->len > cb->header_len :
				     cb->hash_type == PKT_HASH_TYPE_L3)
			n++;
		if (n > 1)
			return true;
	}

	return false;
}

/* Move frames that come in from the wire to the backlog, and merge them */
void dms_gro_receive(struct dms_channel *ch, struct sk_buff_head *frames,
		     int budget)
{
	struct sk_buff *frame;

	if (!(READ_ONCE(ch->port->netdev->features) & NETIF_F_GRO_HW) ||
	    !dms_gro_worthwhile(frames)) {
		skb_queue_splice_tail_init(frames, &ch->backlog);
		return;
	}

	while ((frame = __skb_dequeue(frames)))
		dms_gro_add(ch, frame, budget);
	dms_gro_flush_all(ch, budget);
}

/* The headers in a tunnel of a large packet that is handed to the stack: its
 * Ethernet header is gone already.
 */
void dms_gro_set_inner(const struct sk_buff *frame, struct sk_buff *skb)
{
	skb->encapsulation = 1;
	skb_set_inner_protocol(skb, frame->inner_protocol);
	skb_set_inner_network_header(skb, skb_inner_network_offset(frame) -
					  ETH_HLEN);
	skb_set_inner_transport_header(skb, skb_inner_transport_offset(frame) -
					    ETH_HLEN);
}
