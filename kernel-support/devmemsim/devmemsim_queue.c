// SPDX-License-Identifier: GPL-2.0-only
/*
 * Rx queue memory, and the operations by which the core exchanges it under a
 * running device.
 */
#include <linux/dma-mapping.h>
#include <linux/log2.h>
#include <linux/netdevice.h>
#include <net/netdev_lock.h>
#include <net/netdev_queues.h>
#include <net/netdev_rx_queue.h>
#include <net/page_pool/helpers.h>

#include "devmemsim.h"

/* The ring that a page pool has if its driver does not ask for another: buffers
 * that do not fit go back to the memory provider.
 */
#define DMS_MP_POOL_SIZE	1024

/* What a frame takes beside the MTU: headers of the link, headroom, tailroom */
#define DMS_FRAME_EXTRA		512

static int dms_ring_alloc_pool(struct dms_port *port, struct dms_rx_ring *ring,
			       unsigned int idx)
{
	struct net_device *netdev = port->netdev;
	struct page_pool_params params = {
		.order		= get_order(ring->buf_size),
		.pool_size	= ring->size,
		.nid		= NUMA_NO_NODE,
		.dev		= netdev->dev.parent,
		/* XDP programs write to packets and send them */
		.dma_dir	= DMA_BIDIRECTIONAL,
		.max_len	= ring->buf_size,
		.netdev		= netdev,
		.queue_idx	= idx,
		.flags		= PP_FLAG_DMA_MAP | PP_FLAG_DMA_SYNC_DEV,
	};
	struct page_pool *pool;
	int err;

	/* The core made sure that headers are split before it let a provider
	 * in, and keeps it so while the provider stays.
	 */
	if (netif_rxq_has_unreadable_mp(netdev, idx)) {
		params.flags |= PP_FLAG_ALLOW_UNREADABLE_NETMEM;
		params.pool_size = DMS_MP_POOL_SIZE;
		params.dma_dir = DMA_FROM_DEVICE;
	}

	pool = page_pool_create(&params);
	if (IS_ERR(pool))
		return PTR_ERR(pool);

	err = xdp_reg_page_pool(pool);
	if (err) {
		page_pool_destroy(pool);
		return err;
	}

	ring->pool = pool;
	return 0;
}

static void dms_ring_free_pool(struct dms_rx_ring *ring)
{
	xdp_unreg_page_pool(ring->pool);
	page_pool_destroy(ring->pool);
}

/* Post buffers to the device until the ring is full.
 * Return: 0, -ENOMEM if the pool ran dry, -EFAULT if a buffer is of no use.
 */
int dms_ring_fill(struct net_device *netdev, struct dms_rx_ring *ring,
		  gfp_t gfp)
{
	netmem_ref netmem;
	u32 tail;

	while (ring->count < ring->size) {
		netmem = page_pool_alloc_netmems(ring->pool, gfp);
		if (unlikely(!netmem))
			return -ENOMEM;

		if (unlikely(!dms_dma_reachable(netmem, ring->buf_size))) {
			page_pool_put_full_netmem(ring->pool, netmem, false);
			if (net_ratelimit())
				netdev_err(netdev, "Rx memory is not system RAM: the CPU cannot emulate DMA\n");
			return -EFAULT;
		}

		tail = ring->head + ring->count;
		if (tail >= ring->size)
			tail -= ring->size;
		ring->bufs[tail] = netmem;
		ring->count++;
	}

	return 0;
}

/* The next buffer that was posted, there must be one */
netmem_ref dms_ring_take(struct dms_rx_ring *ring)
{
	netmem_ref netmem = ring->bufs[ring->head];

	if (++ring->head == ring->size)
		ring->head = 0;
	ring->count--;
	return netmem;
}

static void dms_ring_drain(struct dms_rx_ring *ring)
{
	if (ring->spare_half)
		page_pool_put_full_netmem(ring->pool, ring->spare_half, false);
	ring->spare_half = 0;

	while (ring->count)
		page_pool_put_full_netmem(ring->pool, dms_ring_take(ring),
					  false);
}

/* The ring is asked for in frames, and has buffers posted for frames of the
 * largest size, rounded up to a power of two as mlx5 does it: what frames take
 * of the buffers is another matter, a small one leaves most of its share.
 */
static u32 dms_ring_frame_size(u32 mtu)
{
	return roundup_pow_of_two(mtu + DMS_FRAME_EXTRA);
}

int dms_ring_alloc(struct dms_port *port, struct dms_rx_ring *ring,
		   struct netdev_queue_config *qcfg, unsigned int idx)
{
	int err;

	ring->buf_size = qcfg->rx_page_size;
	ring->size = port->rx_pending *
		     DIV_ROUND_UP(dms_ring_frame_size(port->netdev->mtu),
				  ring->buf_size);
	ring->head = 0;
	ring->count = 0;

	ring->bufs = kvcalloc(ring->size, sizeof(*ring->bufs), GFP_KERNEL);
	if (!ring->bufs)
		return -ENOMEM;

	err = dms_ring_alloc_pool(port, ring, idx);
	if (err)
		goto err_free_bufs;

	/* A provider may have less than a ring of memory, or none right now.
	 * What it has must be of use.
	 */
	err = dms_ring_fill(port->netdev, ring, GFP_KERNEL);
	if (err == -EFAULT)
		goto err_drain;

	return 0;

err_drain:
	dms_ring_drain(ring);
	dms_ring_free_pool(ring);
err_free_bufs:
	kvfree(ring->bufs);
	return err;
}

void dms_ring_free(struct dms_rx_ring *ring)
{
	dms_ring_drain(ring);
	dms_ring_free_pool(ring);
	kvfree(ring->bufs);
	memset(ring, 0, sizeof(*ring));
}

static void dms_ring_shape(struct dms_port *port, u32 rx_pending, u32 mtu)
{
	port->rx_pending = rx_pending;
	WRITE_ONCE(port->netdev->mtu, mtu);
}

/* Give all queues rings for so many frames of this MTU, or leave all with the
 * old ones.
 */
int dms_rings_reshape(struct dms_port *port, u32 rx_pending, u32 mtu)
{
	struct net_device *netdev = port->netdev;
	u32 old_pending = port->rx_pending;
	u32 old_mtu = netdev->mtu;
	unsigned int i;
	int err;

	dms_ring_shape(port, rx_pending, mtu);
	if (!netif_running(netdev) ||
	    (rx_pending == old_pending &&
	     dms_ring_frame_size(mtu) == dms_ring_frame_size(old_mtu)))
		return 0;

	for (i = 0; i < netdev->real_num_rx_queues; i++) {
		err = netdev_rx_queue_restart(netdev, i);
		if (err)
			goto err_restore;
	}

	return 0;

err_restore:
	dms_ring_shape(port, old_pending, old_mtu);
	while (i--)
		if (netdev_rx_queue_restart(netdev, i))
			netdev_warn(netdev, "Rx queue %u keeps a ring for %u frames of MTU %u\n",
				    i, rx_pending, mtu);
	return err;
}

void dms_queue_enable(struct dms_channel *ch)
{
	xdp_rxq_info_attach_page_pool(&ch->xdp_rxq, ch->ring.pool);
	page_pool_enable_direct_recycling(ch->ring.pool, &ch->napi);
	napi_enable_locked(&ch->napi);

	/* Frames may have come in while NAPI could not be scheduled */
	local_bh_disable();
	napi_schedule(&ch->napi);
	local_bh_enable();
}

void dms_queue_disable(struct dms_channel *ch)
{
	napi_disable_locked(&ch->napi);
	page_pool_disable_direct_recycling(ch->ring.pool);
	xdp_rxq_info_detach_mem_model(&ch->xdp_rxq);
}

/* Drop what the peer sent. Nothing may be on its way: NAPI is disabled, no
 * fault holds frames and the peer's xmit cannot pick this queue any more.
 */
void dms_queue_purge(struct dms_channel *ch)
{
	struct sk_buff *frame;

	hrtimer_cancel(&ch->rx_timer);

	spin_lock_bh(&ch->wire.lock);
	skb_queue_splice_tail_init(&ch->wire, &ch->backlog);
	spin_unlock_bh(&ch->wire.lock);

	local_bh_disable();
	while ((frame = __skb_dequeue(&ch->backlog)))
		dms_tx_drop(frame);
	local_bh_enable();
}

static int dms_queue_mem_alloc(struct net_device *netdev,
			       struct netdev_queue_config *qcfg,
			       void *per_queue_mem, int idx)
{
	return dms_ring_alloc(netdev_priv(netdev), per_queue_mem, qcfg, idx);
}

static void dms_queue_mem_free(struct net_device *netdev, void *per_queue_mem)
{
	dms_ring_free(per_queue_mem);
}

static int dms_queue_start(struct net_device *netdev,
			   struct netdev_queue_config *qcfg,
			   void *per_queue_mem, int idx)
{
	struct dms_port *port = netdev_priv(netdev);
	struct dms_channel *ch = &port->channels[idx];
	struct dms_rx_ring *ring = per_queue_mem;

	ch->ring = *ring;
	memset(ring, 0, sizeof(*ring));
	dms_queue_enable(ch);
	return 0;
}

static int dms_queue_stop(struct net_device *netdev, void *per_queue_mem,
			  int idx)
{
	struct dms_port *port = netdev_priv(netdev);
	struct dms_channel *ch = &port->channels[idx];
	struct dms_rx_ring *ring = per_queue_mem;

	dms_queue_disable(ch);
	*ring = ch->ring;
	memset(&ch->ring, 0, sizeof(ch->ring));
	return 0;
}

static void dms_default_qcfg(struct net_device *netdev,
			     struct netdev_queue_config *qcfg)
{
	qcfg->rx_page_size = PAGE_SIZE;
}

static int dms_validate_qcfg(struct net_device *netdev,
			     struct netdev_queue_config *qcfg,
			     struct netlink_ext_ack *extack)
{
	if (!is_power_of_2(qcfg->rx_page_size) ||
	    qcfg->rx_page_size < PAGE_SIZE ||
	    qcfg->rx_page_size > DMS_MAX_RX_PAGE_SIZE) {
		NL_SET_ERR_MSG_FMT_MOD(extack,
				       "rx-page-size %u is not a power of two in %lu..%u",
				       qcfg->rx_page_size, PAGE_SIZE,
				       DMS_MAX_RX_PAGE_SIZE);
		return -ERANGE;
	}

	return 0;
}

const struct netdev_queue_mgmt_ops dms_queue_mgmt_ops = {
	.ndo_queue_mem_size	= sizeof(struct dms_rx_ring),
	.ndo_queue_mem_alloc	= dms_queue_mem_alloc,
	.ndo_queue_mem_free	= dms_queue_mem_free,
	.ndo_queue_start	= dms_queue_start,
	.ndo_queue_stop		= dms_queue_stop,
	.ndo_default_qcfg	= dms_default_qcfg,
	.ndo_validate_qcfg	= dms_validate_qcfg,
	.supported_params	= QCFG_RX_PAGE_SIZE,
};
