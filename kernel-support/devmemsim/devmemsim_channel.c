// SPDX-License-Identifier: GPL-2.0-only
/*
 * Channels: they start, stop, and change in number under a running device.
 */
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <net/netdev_lock.h>
#include <net/netdev_queues.h>
#include <net/xdp.h>

#include "devmemsim.h"
#include "devmemsim_fault.h"
#include "devmemsim_steer.h"

void dms_channel_init(struct dms_port *port, unsigned int idx)
{
	struct dms_channel *ch = &port->channels[idx];

	ch->port = port;
	ch->idx = idx;
	skb_queue_head_init(&ch->wire);
	__skb_queue_head_init(&ch->backlog);
	dms_irq_init(ch);
	spin_lock_init(&ch->done_lock);
	spin_lock_init(&ch->xdp_tx.lock);
	u64_stats_init(&ch->rx_stats.syncp);
	u64_stats_init(&ch->tx_stats.syncp);
	u64_stats_init(&ch->xdp_tx.syncp);
}

/* NAPI is there, disabled, before frames can come, and goes when none can */
static int dms_channel_alloc(struct dms_port *port, unsigned int idx)
{
	struct dms_channel *ch = &port->channels[idx];
	struct netdev_queue_config qcfg;
	int err;

	/* With a page to each fragment, as there is no program where buffers
	 * are larger
	 */
	err = __xdp_rxq_info_reg(&ch->xdp_rxq, port->netdev, idx, 0, PAGE_SIZE);
	if (err)
		return err;

	netdev_queue_config(port->netdev, idx, &qcfg);
	err = dms_ring_alloc(port, &ch->ring, &qcfg, idx);
	if (err)
		goto err_unreg;

	err = dms_gro_alloc(ch);
	if (err)
		goto err_free_ring;

	netif_napi_add_config_locked(port->netdev, &ch->napi, dms_poll, idx);
	err = dms_irq_request(ch);
	if (err)
		goto err_del_napi;

	return 0;

err_del_napi:
	netif_napi_del_locked(&ch->napi);
	dms_gro_free(ch);
err_free_ring:
	dms_ring_free(&ch->ring);
err_unreg:
	xdp_rxq_info_unreg(&ch->xdp_rxq);
	return err;
}

void dms_channel_free(struct dms_port *port, unsigned int idx)
{
	struct dms_channel *ch = &port->channels[idx];

	netif_napi_del_locked(&ch->napi);
	dms_irq_release(ch);
	dms_gro_free(ch);
	dms_ring_free(&ch->ring);
	xdp_rxq_info_unreg(&ch->xdp_rxq);
}

void dms_channel_start(struct dms_port *port, unsigned int idx)
{
	struct dms_channel *ch = &port->channels[idx];

	netif_queue_set_napi(port->netdev, idx, NETDEV_QUEUE_TYPE_RX,
			     &ch->napi);
	netif_queue_set_napi(port->netdev, idx, NETDEV_QUEUE_TYPE_TX,
			     &ch->napi);
	dms_queue_enable(ch);
}

/* The peer's xmit must not pick this channel any more */
void dms_channel_stop(struct dms_port *port, unsigned int idx)
{
	struct dms_channel *ch = &port->channels[idx];

	dms_queue_disable(ch);
	netif_queue_set_napi(port->netdev, idx, NETDEV_QUEUE_TYPE_RX, NULL);
	netif_queue_set_napi(port->netdev, idx, NETDEV_QUEUE_TYPE_TX, NULL);
	dms_faults_flush(ch);
	dms_queue_purge(ch);
}

int dms_channels_alloc(struct dms_port *port, unsigned int from,
		       unsigned int to)
{
	unsigned int i;
	int err;

	for (i = from; i < to; i++) {
		err = dms_channel_alloc(port, i);
		if (err)
			goto err_free;
	}

	return 0;

err_free:
	while (i-- > from)
		dms_channel_free(port, i);
	return err;
}

/* Publish before queues stop and after they started */
static int dms_set_n_queues(struct dms_port *port, unsigned int count)
{
	struct dms_steering *steering;

	steering = dms_steering_clone(port);
	if (!steering)
		return -ENOMEM;

	steering->n_queues = count;
	if (!netif_is_rxfh_configured(port->netdev))
		dms_rss_spread(&steering->rss[0], count);

	/* ethtool's set_channels has no extack */
	return dms_steering_try(port, steering, NULL);
}

static int dms_grow_channels(struct dms_port *port, unsigned int count)
{
	struct net_device *netdev = port->netdev;
	unsigned int i, old = netdev->real_num_rx_queues;
	int err;

	if (netif_running(netdev)) {
		err = dms_channels_alloc(port, old, count);
		if (err)
			return err;
	}

	err = netif_set_real_num_queues(netdev, count, count);
	if (err)
		goto err_free;

	err = dms_set_n_queues(port, count);
	if (err)
		goto err_restore;

	if (netif_running(netdev))
		for (i = old; i < count; i++)
			dms_channel_start(port, i);

	return 0;

err_restore:
	netif_set_real_num_queues(netdev, old, old);
err_free:
	if (netif_running(netdev))
		for (i = old; i < count; i++)
			dms_channel_free(port, i);
	return err;
}

static int dms_shrink_channels(struct dms_port *port, unsigned int count)
{
	struct net_device *netdev = port->netdev;
	unsigned int i, old = netdev->real_num_rx_queues;
	int err;

	err = dms_set_n_queues(port, count);
	if (err)
		return err;

	if (netif_running(netdev)) {
		/* The peer's xmit goes by the steering table */
		synchronize_net();
		for (i = count; i < old; i++) {
			dms_channel_stop(port, i);
			dms_channel_free(port, i);
		}
	}

	/* Only now, as the stack does not expect packets from queues beyond.
	 * What it sends on them until then needs nothing that is gone: the
	 * peer completes it.
	 */
	return netif_set_real_num_queues(netdev, count, count);
}

int dms_set_channels(struct dms_port *port, unsigned int count)
{
	unsigned int old = port->netdev->real_num_rx_queues;
	int err;

	if (count == old)
		return 0;

	err = dms_rss_can_resize(port, count);
	if (err)
		return err;

	if (count > old)
		err = dms_grow_channels(port, count);
	else
		err = dms_shrink_channels(port, count);
	if (err)
		return err;

	dms_rss_resize(port, old, count);
	return 0;
}
