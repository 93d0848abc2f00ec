// SPDX-License-Identifier: GPL-2.0-only
/*
 * Transmit: classify a frame the way the receiving device does and put it on
 * the wire of the queue it belongs to. It is completed when the peer's NAPI
 * has copied it.
 */
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/tcp.h>
#include <net/gso.h>
#include <net/netdev_queues.h>

#include "devmemsim.h"
#include "devmemsim_steer.h"

/* Room for the segments of an average large packet. Not a hard limit, the wire
 * is a list.
 */
#define DMS_TX_STOP_THRESH	16

/* Frames that wait on the peer at the expense of nobody */
#define DMS_WIRE_LEN		4096

static unsigned int dms_tx_free(const struct dms_channel *ch)
{
	unsigned int in_flight = atomic_read(&ch->in_flight);
	unsigned int pending = READ_ONCE(ch->port->tx_pending);

	return in_flight < pending ? pending - in_flight : 0;
}

unsigned int dms_tx_in_flight(const struct dms_port *port)
{
	unsigned int i, n = 0;

	for (i = 0; i < DMS_MAX_CHANNELS; i++)
		n += atomic_read(&port->channels[i].in_flight) +
		     atomic_read(&port->channels[i].xdp_tx.in_flight);

	return n;
}

static void dms_tx_done(const struct sk_buff *frame)
{
	struct netdev_queue *txq;
	struct dms_channel *ch;
	struct dms_port *port;

	if (DMS_FRAME_CB(frame)->sent)
		return;

	port = netdev_priv(frame->dev);
	ch = &port->channels[skb_get_queue_mapping(frame)];
	if (DMS_FRAME_CB(frame)->xdp) {
		atomic_dec(&ch->xdp_tx.in_flight);
		return;
	}

	txq = netdev_get_tx_queue(port->netdev, ch->idx);

	spin_lock(&ch->done_lock);
	atomic_dec(&ch->in_flight);
	__netif_txq_completed_wake(txq, 1, DMS_FRAME_CB(frame)->len,
				   dms_tx_free(ch), DMS_TX_STOP_THRESH,
				   !READ_ONCE(port->up));
	spin_unlock(&ch->done_lock);
}

/* The frame has left, the peer keeps it for a while */
static void dms_tx_sent(struct sk_buff *frame)
{
	dms_tx_done(frame);
	DMS_FRAME_CB(frame)->sent = true;
}

/* The peer has received a frame */
void dms_tx_complete(struct sk_buff *frame, int budget)
{
	dms_tx_done(frame);
	napi_consume_skb(frame, budget);
}

/* The peer drops a frame */
void dms_tx_drop(struct sk_buff *frame)
{
	dms_tx_done(frame);
	dev_kfree_skb_any(frame);
}

/* Put a frame on the wire to a channel. It may be completed before this
 * returns.
 */
void dms_tx_wire(struct dms_channel *to, struct sk_buff *frame)
{
	u32 usecs = READ_ONCE(to->port->rx_usecs);
	bool first;

	/* Or the sender's queue limits would say how many can wait */
	if (usecs && READ_ONCE(to->wire.qlen) < DMS_WIRE_LEN)
		dms_tx_sent(frame);

	spin_lock(&to->wire.lock);
	first = skb_queue_empty(&to->wire);
	__skb_queue_tail(&to->wire, frame);
	spin_unlock(&to->wire.lock);

	/* For those behind the first one the timer runs, or NAPI is about to */
	if (!usecs)
		dms_irq_raise(to);
	else if (first)
		dms_irq_delay(to, usecs);
}

static void dms_xmit_drop(struct dms_channel *ch, struct sk_buff *skb)
{
	u64_stats_update_begin(&ch->tx_stats.syncp);
	u64_stats_inc(&ch->tx_stats.drops);
	u64_stats_update_end(&ch->tx_stats.syncp);
	dev_kfree_skb_any(skb);
}

/* Payload may be device memory here as well, bound for transmission */
static bool dms_tx_reachable(const struct sk_buff *skb)
{
	const struct skb_shared_info *shinfo = skb_shinfo(skb);
	int i;

	if (likely(skb_frags_readable(skb)))
		return true;

	for (i = 0; i < shinfo->nr_frags; i++)
		if (!dms_dma_reachable(skb_frag_netmem(&shinfo->frags[i]),
				       PAGE_SIZE))
			return false;

	return true;
}

/* Return: the peer's queue for a frame, or a negative error */
static int dms_tx_classify(const struct dms_port *peer, struct sk_buff *frame)
{
	struct dms_frame_cb *cb = DMS_FRAME_CB(frame);
	const struct dms_steering *steering;
	struct dms_flow flow;

	BUILD_BUG_ON(sizeof(*cb) > sizeof(frame->cb));

	cb->released = false;
	cb->sent = false;
	cb->xdp = false;
	cb->len = frame->len;
	cb->header_len = dms_flow_parse(frame, &flow);
	cb->repeat_len = cb->header_len;
	cb->csum = dms_csum_check(frame);

	steering = rcu_dereference_bh(peer->steering);
	return dms_steer(steering, &flow, cb);
}

/* Return: the peer's channel for a frame, or NULL if it cannot be sent */
struct dms_channel *dms_tx_route(struct dms_port *peer, struct sk_buff *frame)
{
	int queue;

	queue = dms_tx_classify(peer, frame);
	if (unlikely(queue < 0 || !READ_ONCE(peer->up) ||
		     !dms_tx_reachable(frame)))
		return NULL;

	return &peer->channels[queue];
}

static void dms_xmit_frame(struct dms_channel *ch, struct dms_port *peer,
			   struct sk_buff *frame)
{
	struct netdev_queue *txq;
	struct dms_channel *to;

	to = dms_tx_route(peer, frame);
	if (unlikely(!to)) {
		dms_xmit_drop(ch, frame);
		return;
	}

	u64_stats_update_begin(&ch->tx_stats.syncp);
	u64_stats_add(&ch->tx_stats.packets, dms_wire_packets(frame));
	u64_stats_add(&ch->tx_stats.bytes, dms_wire_bytes(frame));
	u64_stats_update_end(&ch->tx_stats.syncp);

	txq = netdev_get_tx_queue(ch->port->netdev, ch->idx);
	netdev_tx_sent_queue(txq, frame->len);
	atomic_inc(&ch->in_flight);
	dms_tx_wire(to, frame);
}

static void dms_tx_count_gso(struct dms_channel *ch, const struct sk_buff *skb)
{
	struct dms_tx_stats *stats = &ch->tx_stats;
	unsigned int header_len, packets;

	header_len = skb->encapsulation ? skb_inner_tcp_all_headers(skb) :
					  skb_tcp_all_headers(skb);
	packets = DIV_ROUND_UP(skb->len - header_len,
			       skb_shinfo(skb)->gso_size);
	u64_stats_update_begin(&stats->syncp);
	u64_stats_inc(&stats->gso_packets);
	u64_stats_add(&stats->gso_bytes, skb->len);
	u64_stats_add(&stats->gso_wire_packets, packets);
	u64_stats_add(&stats->gso_wire_bytes,
		      skb->len + (packets - 1) * header_len);
	u64_stats_update_end(&stats->syncp);
}

/* A device with hardware GRO would put the segments together again, so do not
 * take them apart for it.
 */
static bool dms_tx_keep_large(const struct dms_port *peer,
			      const struct sk_buff *skb)
{
	return !skb_is_gso(skb) ||
	       (skb_is_gso_tcp(skb) && !skb->encapsulation &&
		READ_ONCE(peer->netdev->features) & NETIF_F_GRO_HW);
}

netdev_tx_t dms_start_xmit(struct sk_buff *skb, struct net_device *netdev)
{
	struct dms_port *port = netdev_priv(netdev);
	struct sk_buff *segs, *seg, *next;
	struct dms_channel *ch;
	int stopped;

	ch = &port->channels[skb_get_queue_mapping(skb)];
	skb_tx_timestamp(skb);
	if (skb_is_gso(skb) && skb_is_gso_tcp(skb))
		dms_tx_count_gso(ch, skb);

	segs = skb;
	if (!dms_tx_keep_large(port->peer, skb)) {
		segs = __skb_gso_segment(skb,
					 netdev->features & ~NETIF_F_GSO_MASK,
					 false);
		if (IS_ERR_OR_NULL(segs)) {
			dms_xmit_drop(ch, skb);
			return NETDEV_TX_OK;
		}
		consume_skb(skb);
	}

	skb_list_walk_safe(segs, seg, next) {
		skb_mark_not_on_list(seg);
		dms_xmit_frame(ch, port->peer, seg);
	}

	stopped = netif_subqueue_maybe_stop(netdev, ch->idx, dms_tx_free(ch),
					    DMS_TX_STOP_THRESH,
					    DMS_TX_STOP_THRESH);
	if (!stopped) {
		u64_stats_update_begin(&ch->tx_stats.syncp);
		u64_stats_inc(&ch->tx_stats.stop);
		u64_stats_update_end(&ch->tx_stats.syncp);
	}

	return NETDEV_TX_OK;
}
