// SPDX-License-Identifier: GPL-2.0-only
/*
 * Receive: NAPI picks up the frames that the peer sent, copies them into the
 * posted buffers and hands them to the stack.
 */
#include <linux/etherdevice.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <net/gro.h>
#include <net/page_pool/helpers.h>

#include "devmemsim.h"

/* Frames without payload of their own to place stay in one piece up to this,
 * and of longer ones this much goes to the head.
 */
#define DMS_RX_HEAD_LEN	256

#define DMS_GSO_TCP_MASK	(SKB_GSO_TCPV4 | SKB_GSO_TCPV6 | \
				 SKB_GSO_TCP_ECN | SKB_GSO_TCP_ACCECN | \
				 SKB_GSO_TCP_FIXEDID | \
				 SKB_GSO_TCP_FIXEDID_INNER | \
				 SKB_GSO_IPXIP4 | SKB_GSO_IPXIP6)

static void dms_rx_refill(struct dms_channel *ch)
{
	struct dms_rx_ring *ring = &ch->ring;

	if (ring->count == ring->size)
		return;

	if (unlikely(dms_ring_fill(ch->port->netdev, ring,
				   GFP_ATOMIC | __GFP_NOWARN)))
		dms_rx_count_alloc_fail(ch);
}

struct sk_buff *dms_rx_build_head(struct dms_channel *ch,
				  const struct sk_buff *frame,
				  unsigned int len)
{
	struct sk_buff *skb;

	skb = napi_alloc_skb(&ch->napi, len);
	if (unlikely(!skb)) {
		dms_rx_count_alloc_fail(ch);
		return NULL;
	}

	if (unlikely(dms_dma_read(frame, 0, skb_put(skb, len), len))) {
		dev_kfree_skb(skb);
		return NULL;
	}

	return skb;
}

/* Add the rest of a frame to a packet that has its start. The device fills
 * posted buffers with it, the first one from @pad on.
 */
int dms_rx_attach(struct dms_channel *ch, const struct sk_buff *frame,
		  struct sk_buff *skb, unsigned int pad)
{
	struct dms_rx_ring *ring = &ch->ring;
	unsigned int offset = skb->len;
	unsigned int i, len, need;
	netmem_ref netmem;

	if (offset == frame->len)
		return 0;

	need = DIV_ROUND_UP(pad + frame->len - offset, ring->buf_size);
	if (unlikely(need > ring->count || need > MAX_SKB_FRAGS)) {
		dms_rx_count_overrun(ch);
		return -ENOBUFS;
	}

	skb_mark_for_recycle(skb);
	for (i = 0; i < need; i++) {
		len = min(frame->len - offset, ring->buf_size - pad);
		netmem = dms_ring_take(ring);
		skb_add_rx_frag_netmem(skb, i, netmem, pad, len,
				       ring->buf_size);
		if (unlikely(dms_dma_write(netmem, pad, frame, offset, len)))
			return -EFAULT;

		page_pool_dma_sync_netmem_for_cpu(ring->pool, netmem, pad, len);
		offset += len;
		pad = 0;
	}

	return 0;
}

/* Memory of the host alone: the first @linear_len bytes in the head, the rest
 * in pages that do not come from a page pool. GRO joins page pool packets of a
 * flow without asking whether they can be read, but never joins them with
 * others. So these are safe on a queue whose pool cannot be read.
 */
struct sk_buff *dms_rx_build_host(struct dms_channel *ch,
				  const struct sk_buff *frame,
				  unsigned int linear_len)
{
	unsigned int offset = linear_len;
	struct sk_buff *skb;
	int err, i;

	skb = alloc_skb_with_frags(NET_SKB_PAD + NET_IP_ALIGN + linear_len,
				   frame->len - linear_len, 0, &err,
				   GFP_ATOMIC | __GFP_NOWARN);
	if (unlikely(!skb)) {
		dms_rx_count_alloc_fail(ch);
		return NULL;
	}

	skb_reserve(skb, NET_SKB_PAD + NET_IP_ALIGN);
	err = dms_dma_read(frame, 0, skb_put(skb, linear_len), linear_len);

	for (i = 0; !err && i < skb_shinfo(skb)->nr_frags; i++) {
		skb_frag_t *frag = &skb_shinfo(skb)->frags[i];
		unsigned int len = skb_frag_size(frag);

		err = dms_dma_read(frame, offset, skb_frag_address(frag), len);
		offset += len;
	}

	if (unlikely(err)) {
		dev_kfree_skb(skb);
		return NULL;
	}

	skb->len = frame->len;
	skb->data_len = frame->len - linear_len;
	skb->dev = ch->port->netdev;
	return skb;
}

/* Header split: TCP payload starts a buffer of its own, the header goes to the
 * head and nothing else does. Frames that are not split keep room in front of
 * the payload, as the device would have put the header there.
 */
struct sk_buff *dms_rx_build(struct dms_channel *ch,
			     const struct sk_buff *frame)
{
	unsigned int header_len = DMS_FRAME_CB(frame)->header_len;
	bool split = dms_rx_splits(ch->port, frame);
	unsigned int linear_len;
	struct sk_buff *skb;

	if (frame->len <= READ_ONCE(ch->port->rx_copybreak))
		linear_len = frame->len;
	else if (split || (header_len && frame->len > DMS_RX_HEAD_LEN))
		linear_len = header_len;
	else
		linear_len = min(frame->len, DMS_RX_HEAD_LEN);

	/* TCP is going to look at the payload of one with a bad checksum */
	if ((!split || DMS_FRAME_CB(frame)->csum == DMS_CSUM_BAD) &&
	    page_pool_is_unreadable(ch->ring.pool))
		return dms_rx_build_host(ch, frame, linear_len);

	skb = dms_rx_build_head(ch, frame, linear_len);
	if (unlikely(!skb))
		return NULL;

	if (unlikely(dms_rx_attach(ch, frame, skb, split ? 0 : linear_len))) {
		dev_kfree_skb(skb);
		return NULL;
	}

	return skb;
}

static void dms_rx_checksum(const struct sk_buff *frame, struct sk_buff *skb)
{
	switch (DMS_FRAME_CB(frame)->csum) {
	case DMS_CSUM_PARTIAL:
		/* A large packet is delivered as hardware GRO does it: checked,
		 * and with the sum of the pseudo header for who takes it apart.
		 */
		if (skb_is_gso(frame) ||
		    !dms_csum_fill(frame, skb_mac_header(skb),
				   skb_headlen(skb) + ETH_HLEN)) {
			skb_partial_csum_set(skb,
					     skb_checksum_start_offset(frame) -
					     ETH_HLEN, frame->csum_offset);
			break;
		}
		fallthrough;
	case DMS_CSUM_GOOD:
		skb->ip_summed = CHECKSUM_UNNECESSARY;
		break;
	default:
		break;
	}
}

/* Hand a frame to the stack that was copied to @skb */
void dms_rx_deliver(struct dms_channel *ch, const struct sk_buff *frame,
		    struct sk_buff *skb)
{
	const struct dms_frame_cb *cb = DMS_FRAME_CB(frame);
	struct net_device *netdev = ch->port->netdev;

	dms_rx_count(ch, frame);

	skb->protocol = eth_type_trans(skb, netdev);
	dms_rx_checksum(frame, skb);
	if (netdev->features & NETIF_F_RXHASH)
		skb_set_hash(skb, cb->hash, cb->hash_type);
	skb_record_rx_queue(skb, ch->idx);

	if (skb_is_gso(frame) && cb->csum != DMS_CSUM_BAD) {
		const struct skb_shared_info *from = skb_shinfo(frame);
		struct skb_shared_info *to = skb_shinfo(skb);

		to->gso_size = from->gso_size;
		to->gso_segs = from->gso_segs;
		to->gso_type = from->gso_type & DMS_GSO_TCP_MASK;
		if (frame->encapsulation)
			dms_gro_set_inner(frame, skb);
	}

	napi_gro_receive(&ch->napi, skb);
}

/* Copy a frame and hand the copy to the program, or else to the stack */
void dms_rx_frame(struct dms_channel *ch, const struct sk_buff *frame)
{
	const struct bpf_prog *prog = rcu_dereference_bh(ch->port->xdp_prog);
	struct sk_buff *skb;

	if (prog) {
		dms_xdp_frame(ch, prog, frame);
		return;
	}

	skb = dms_rx_build(ch, frame);
	if (likely(skb))
		dms_rx_deliver(ch, frame, skb);
}

/* The ordinary way of a frame */
void dms_receive(struct dms_channel *ch, struct sk_buff *frame, int budget)
{
	dms_rx_frame(ch, frame);
	dms_tx_complete(frame, budget);
}

int dms_poll(struct napi_struct *napi, int budget)
{
	struct dms_channel *ch = container_of(napi, struct dms_channel, napi);
	dms_receive_t receive = READ_ONCE(ch->port->receive);
	struct sk_buff_head frames;
	struct sk_buff *frame;
	int done = 0;

	if (unlikely(!budget))
		return 0;

	__skb_queue_head_init(&frames);
	spin_lock(&ch->wire.lock);
	skb_queue_splice_init(&ch->wire, &frames);
	spin_unlock(&ch->wire.lock);
	dms_gro_receive(ch, &frames, budget);

	while (done < budget && (frame = __skb_dequeue(&ch->backlog))) {
		dms_rx_refill(ch);
		receive(ch, frame, budget);
		done++;
	}

	dms_xdp_flush(ch);
	if (done < budget && napi_complete_done(napi, done))
		dms_irq_arm(ch);

	return done;
}
