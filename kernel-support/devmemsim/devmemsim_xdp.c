// SPDX-License-Identifier: GPL-2.0-only
/*
 * XDP: a frame is copied into posted buffers with room around it for the
 * program, which runs on it and says what becomes of it.
 */
#include <linux/bpf.h>
#include <linux/bpf_trace.h>
#include <linux/etherdevice.h>
#include <linux/filter.h>
#include <linux/if_vlan.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <net/netdev_lock.h>
#include <net/netdev_queues.h>
#include <net/page_pool/helpers.h>
#include <net/xdp.h>

#include "devmemsim.h"

/* Of the first buffer of a frame, what the frame may have: a memory provider
 * and XDP exclude each other, so buffers are pages.
 */
#define DMS_XDP_ROOM		(SKB_WITH_OVERHEAD(PAGE_SIZE) - \
				 XDP_PACKET_HEADROOM)
#define DMS_XDP_MAX_MTU		(DMS_XDP_ROOM - VLAN_ETH_HLEN)

static bool dms_xdp_single(const struct bpf_prog *prog)
{
	return prog && !prog->aux->xdp_has_frags;
}

static struct bpf_prog *dms_xdp_prog(const struct dms_port *port)
{
	return netdev_lock_dereference(port->xdp_prog, port->netdev);
}

bool dms_xdp_mtu_fits(const struct dms_port *port, int mtu)
{
	return !dms_xdp_single(dms_xdp_prog(port)) || mtu <= DMS_XDP_MAX_MTU;
}

/* A frame may be longer than the MTU. And the peer may have sent it before the
 * program came and with it the end of hardware GRO.
 */
static bool dms_xdp_fits(const struct dms_channel *ch,
			 const struct bpf_prog *prog,
			 const struct sk_buff *frame)
{
	return !skb_is_gso(frame) &&
	       !page_pool_is_unreadable(ch->ring.pool) &&
	       (!dms_xdp_single(prog) || frame->len <= DMS_XDP_ROOM);
}

/* Return: how much of a frame goes to the first buffer */
static unsigned int dms_xdp_linear_len(const struct dms_port *port,
				       const struct bpf_prog *prog,
				       const struct sk_buff *frame)
{
	unsigned int header_len = DMS_FRAME_CB(frame)->header_len;

	if (!dms_xdp_single(prog) && dms_rx_splits(port, frame) &&
	    header_len <= DMS_XDP_ROOM)
		return header_len;

	return min_t(unsigned int, frame->len, DMS_XDP_ROOM);
}

/* Copy a frame to posted buffers.
 * Return: false if there is none in @xdp.
 */
static bool dms_xdp_copy(struct dms_channel *ch, const struct bpf_prog *prog,
			 const struct sk_buff *frame, struct xdp_buff *xdp)
{
	struct dms_rx_ring *ring = &ch->ring;
	unsigned int offset, len, need;
	netmem_ref netmem;

	len = dms_xdp_linear_len(ch->port, prog, frame);
	need = 1 + DIV_ROUND_UP(frame->len - len, ring->buf_size);
	if (unlikely(need > ring->count || need > 1 + MAX_SKB_FRAGS)) {
		dms_rx_count_overrun(ch);
		return false;
	}

	netmem = dms_ring_take(ring);
	xdp_init_buff(xdp, ring->buf_size, &ch->xdp_rxq);
	xdp_prepare_buff(xdp, netmem_address(netmem), XDP_PACKET_HEADROOM, len,
			 true);
	if (unlikely(dms_dma_write(netmem, XDP_PACKET_HEADROOM, frame, 0, len)))
		goto err_return;
	page_pool_dma_sync_netmem_for_cpu(ring->pool, netmem,
					  XDP_PACKET_HEADROOM, len);

	for (offset = len; offset < frame->len; offset += len) {
		len = min(frame->len - offset, ring->buf_size);
		netmem = dms_ring_take(ring);
		xdp_buff_add_frag(xdp, netmem, 0, len, ring->buf_size);
		if (unlikely(dms_dma_write(netmem, 0, frame, offset, len)))
			goto err_return;
		page_pool_dma_sync_netmem_for_cpu(ring->pool, netmem, 0, len);
	}

	/* The program sees what would be on a wire */
	if (frame->ip_summed == CHECKSUM_PARTIAL &&
	    !dms_csum_fill(frame, xdp->data, xdp->data_end - xdp->data))
		goto err_return;

	return true;

err_return:
	dms_rx_count_drop(ch);
	xdp_return_buff(xdp);
	return false;
}

static bool dms_xdp_tx_full(const struct dms_channel *ch)
{
	return atomic_read(&ch->xdp_tx.in_flight) >=
	       READ_ONCE(ch->port->tx_pending);
}

/* Put a packet on the wire that did not come from the stack */
static void dms_xdp_send(struct dms_channel *ch, struct sk_buff *skb)
{
	struct dms_xdp_tx *tx = &ch->xdp_tx;
	struct dms_channel *to;
	bool sent;

	/* It looks like one that was received */
	skb_reset_network_header(skb);
	__skb_push(skb, ETH_HLEN);
	skb_set_queue_mapping(skb, ch->idx);
	to = dms_tx_route(ch->port->peer, skb);

	spin_lock(&tx->lock);
	sent = to && !dms_xdp_tx_full(ch);
	u64_stats_update_begin(&tx->syncp);
	if (sent) {
		atomic_inc(&tx->in_flight);
		u64_stats_inc(&tx->packets);
		u64_stats_add(&tx->bytes, skb->len);
	} else {
		u64_stats_inc(&tx->drops);
	}
	u64_stats_update_end(&tx->syncp);
	spin_unlock(&tx->lock);

	if (unlikely(!sent)) {
		dev_kfree_skb_any(skb);
		return;
	}

	DMS_FRAME_CB(skb)->xdp = true;
	dms_tx_wire(to, skb);
}

/* The program may have changed anything: what the device found out about
 * checksums is void.
 */
static void dms_xdp_pass(struct dms_channel *ch, const struct sk_buff *frame,
			 struct sk_buff *skb)
{
	const struct dms_frame_cb *cb = DMS_FRAME_CB(frame);

	if (ch->port->netdev->features & NETIF_F_RXHASH)
		skb_set_hash(skb, cb->hash, cb->hash_type);

	napi_gro_receive(&ch->napi, skb);
}

/* Return: what became of the frame, an enum xdp_action */
static u32 dms_xdp_run(struct dms_channel *ch, const struct bpf_prog *prog,
		       const struct sk_buff *frame, struct xdp_buff *xdp)
{
	struct net_device *netdev = ch->port->netdev;
	struct sk_buff *skb;
	u32 act;

	act = bpf_prog_run_xdp(prog, xdp);
	switch (act) {
	case XDP_PASS:
	case XDP_TX:
		skb = xdp_build_skb_from_buff(xdp);
		if (unlikely(!skb)) {
			dms_rx_count_alloc_fail(ch);
			goto err_exception;
		}
		if (act == XDP_PASS)
			dms_xdp_pass(ch, frame, skb);
		else
			dms_xdp_send(ch, skb);
		return act;
	case XDP_REDIRECT:
		if (unlikely(xdp_do_redirect(netdev, xdp, prog)))
			goto err_exception;
		ch->xdp_redirected = true;
		return act;
	case XDP_DROP:
		xdp_return_buff(xdp);
		return act;
	case XDP_ABORTED:
		break;
	default:
		bpf_warn_invalid_xdp_action(netdev, prog, act);
		break;
	}

err_exception:
	trace_xdp_exception(netdev, prog, act);
	xdp_return_buff(xdp);
	return XDP_ABORTED;
}

/* A frame has come in and there is a program */
void dms_xdp_frame(struct dms_channel *ch, const struct bpf_prog *prog,
		   const struct sk_buff *frame)
{
	struct dms_rx_stats *stats = &ch->rx_stats;
	struct xdp_buff xdp;
	u32 act;

	if (unlikely(!dms_xdp_fits(ch, prog, frame))) {
		dms_rx_count_drop(ch);
		return;
	}

	if (unlikely(!dms_xdp_copy(ch, prog, frame, &xdp)))
		return;

	dms_rx_count(ch, frame);
	act = dms_xdp_run(ch, prog, frame, &xdp);

	u64_stats_update_begin(&stats->syncp);
	u64_stats_inc(&stats->xdp[act]);
	u64_stats_update_end(&stats->syncp);
}

/* At the end of a poll */
void dms_xdp_flush(struct dms_channel *ch)
{
	if (!ch->xdp_redirected)
		return;

	ch->xdp_redirected = false;
	xdp_do_flush();
}

/* Programs of other devices, and of this one, redirect to here */
int dms_xdp_xmit(struct net_device *netdev, int n, struct xdp_frame **frames,
		 u32 flags)
{
	struct dms_port *port = netdev_priv(netdev);
	struct dms_channel *ch;
	struct sk_buff *skb;
	int i;

	if (unlikely(flags & ~XDP_XMIT_FLAGS_MASK))
		return -EINVAL;
	if (unlikely(!READ_ONCE(port->up)))
		return -ENETDOWN;

	ch = &port->channels[smp_processor_id() %
			     READ_ONCE(netdev->real_num_tx_queues)];
	for (i = 0; i < n && !dms_xdp_tx_full(ch); i++) {
		skb = xdp_build_skb_from_frame(frames[i], netdev);
		if (unlikely(!skb))
			break;
		dms_xdp_send(ch, skb);
	}

	return i;
}

/* A program that did not hear of header split gets none: unless the user asked
 * for it, which the core only lets be with programs that cope.
 */
void dms_hds_update(struct dms_port *port, u8 hds_config)
{
	bool hds = hds_config == ETHTOOL_TCP_DATA_SPLIT_ENABLED ||
		   (hds_config == ETHTOOL_TCP_DATA_SPLIT_UNKNOWN &&
		    !dms_xdp_prog(port));

	WRITE_ONCE(port->hds, hds);
}

static int dms_xdp_setup(struct dms_port *port, struct bpf_prog *prog,
			 struct netlink_ext_ack *extack)
{
	struct net_device *netdev = port->netdev;
	struct bpf_prog *old;

	if (dms_xdp_single(prog) && netdev->mtu > DMS_XDP_MAX_MTU) {
		NL_SET_ERR_MSG_FMT_MOD(extack,
				       "MTU %u exceeds %lu, the maximum of a single-buffer program",
				       netdev->mtu, DMS_XDP_MAX_MTU);
		return -EOPNOTSUPP;
	}

	/* Any buffer will do for a program, so nothing has to restart */
	old = dms_xdp_prog(port);
	rcu_assign_pointer(port->xdp_prog, prog);
	if (!old != !prog) {
		dms_hds_update(port, netdev->cfg->hds_config);
		netdev_update_features(netdev);
	}

	if (old)
		bpf_prog_put(old);
	return 0;
}

int dms_bpf(struct net_device *netdev, struct netdev_bpf *bpf)
{
	switch (bpf->command) {
	case XDP_SETUP_PROG:
		return dms_xdp_setup(netdev_priv(netdev), bpf->prog,
				     bpf->extack);
	default:
		return -EINVAL;
	}
}
