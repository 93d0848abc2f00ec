// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counters: of what is received, and all of them for those who read them.
 */
#include <linux/ethtool.h>
#include <linux/netdevice.h>
#include <net/netdev_queues.h>

#include "devmemsim.h"

void dms_rx_count_alloc_fail(struct dms_channel *ch)
{
	u64_stats_update_begin(&ch->rx_stats.syncp);
	u64_stats_inc(&ch->rx_stats.alloc_fail);
	u64_stats_update_end(&ch->rx_stats.syncp);
}

void dms_rx_count_drop(struct dms_channel *ch)
{
	u64_stats_update_begin(&ch->rx_stats.syncp);
	u64_stats_inc(&ch->rx_stats.drops);
	u64_stats_update_end(&ch->rx_stats.syncp);
}

void dms_rx_count_overrun(struct dms_channel *ch)
{
	u64_stats_update_begin(&ch->rx_stats.syncp);
	u64_stats_inc(&ch->rx_stats.drops);
	u64_stats_inc(&ch->rx_stats.overruns);
	u64_stats_update_end(&ch->rx_stats.syncp);
}

void dms_rx_count(struct dms_channel *ch, const struct sk_buff *frame)
{
	unsigned int packets = dms_wire_packets(frame);
	unsigned int bytes = dms_wire_bytes(frame);
	struct dms_rx_stats *stats = &ch->rx_stats;

	u64_stats_update_begin(&stats->syncp);
	u64_stats_add(&stats->packets, packets);
	u64_stats_add(&stats->bytes, bytes);
	if (skb_is_gso(frame)) {
		u64_stats_inc(&stats->gro_packets);
		u64_stats_add(&stats->gro_bytes, frame->len);
		u64_stats_add(&stats->gro_wire_packets, packets);
		u64_stats_add(&stats->gro_wire_bytes, bytes);
	}
	u64_stats_update_end(&stats->syncp);
}

struct dms_xdp_sent {
	u64 packets;
	u64 bytes;
	u64 drops;
};

static struct dms_xdp_sent dms_xdp_sent(const struct dms_xdp_tx *tx)
{
	struct dms_xdp_sent sent;
	unsigned int start;

	do {
		start = u64_stats_fetch_begin(&tx->syncp);
		sent.packets = u64_stats_read(&tx->packets);
		sent.bytes = u64_stats_read(&tx->bytes);
		sent.drops = u64_stats_read(&tx->drops);
	} while (u64_stats_fetch_retry(&tx->syncp, start));

	return sent;
}

void dms_get_stats64(struct net_device *netdev,
		     struct rtnl_link_stats64 *stats)
{
	struct dms_port *port = netdev_priv(netdev);
	unsigned int i, start;

	for (i = 0; i < DMS_MAX_CHANNELS; i++) {
		struct dms_rx_stats *rx = &port->channels[i].rx_stats;
		struct dms_tx_stats *tx = &port->channels[i].tx_stats;
		u64 packets, bytes, drops, overruns;
		struct dms_xdp_sent xdp;

		do {
			start = u64_stats_fetch_begin(&rx->syncp);
			packets = u64_stats_read(&rx->packets);
			bytes = u64_stats_read(&rx->bytes);
			drops = u64_stats_read(&rx->drops);
			overruns = u64_stats_read(&rx->overruns);
		} while (u64_stats_fetch_retry(&rx->syncp, start));
		stats->rx_packets += packets;
		stats->rx_bytes += bytes;
		stats->rx_dropped += drops;
		stats->rx_missed_errors += overruns;

		do {
			start = u64_stats_fetch_begin(&tx->syncp);
			packets = u64_stats_read(&tx->packets);
			bytes = u64_stats_read(&tx->bytes);
			drops = u64_stats_read(&tx->drops);
		} while (u64_stats_fetch_retry(&tx->syncp, start));
		xdp = dms_xdp_sent(&port->channels[i].xdp_tx);
		stats->tx_packets += packets + xdp.packets;
		stats->tx_bytes += bytes + xdp.bytes;
		stats->tx_dropped += drops + xdp.drops;
	}
}

static void dms_get_queue_stats_rx(struct net_device *netdev, int idx,
				   struct netdev_queue_stats_rx *stats)
{
	struct dms_port *port = netdev_priv(netdev);
	struct dms_rx_stats *rx = &port->channels[idx].rx_stats;
	unsigned int start;

	do {
		start = u64_stats_fetch_begin(&rx->syncp);
		stats->packets = u64_stats_read(&rx->packets);
		stats->bytes = u64_stats_read(&rx->bytes);
		stats->alloc_fail = u64_stats_read(&rx->alloc_fail);
		stats->hw_drops = u64_stats_read(&rx->drops);
		stats->hw_drop_overruns = u64_stats_read(&rx->overruns);
		stats->hw_gro_packets = u64_stats_read(&rx->gro_packets);
		stats->hw_gro_bytes = u64_stats_read(&rx->gro_bytes);
		stats->hw_gro_wire_packets =
			u64_stats_read(&rx->gro_wire_packets);
		stats->hw_gro_wire_bytes = u64_stats_read(&rx->gro_wire_bytes);
	} while (u64_stats_fetch_retry(&rx->syncp, start));
}

static void dms_get_queue_stats_tx(struct net_device *netdev, int idx,
				   struct netdev_queue_stats_tx *stats)
{
	struct dms_port *port = netdev_priv(netdev);
	struct dms_tx_stats *tx = &port->channels[idx].tx_stats;
	struct dms_xdp_sent xdp;
	unsigned int start;

	do {
		start = u64_stats_fetch_begin(&tx->syncp);
		stats->packets = u64_stats_read(&tx->packets);
		stats->bytes = u64_stats_read(&tx->bytes);
		stats->hw_drops = u64_stats_read(&tx->drops);
		stats->stop = u64_stats_read(&tx->stop);
		stats->hw_gso_packets = u64_stats_read(&tx->gso_packets);
		stats->hw_gso_bytes = u64_stats_read(&tx->gso_bytes);
		stats->hw_gso_wire_packets =
			u64_stats_read(&tx->gso_wire_packets);
		stats->hw_gso_wire_bytes = u64_stats_read(&tx->gso_wire_bytes);
	} while (u64_stats_fetch_retry(&tx->syncp, start));

	xdp = dms_xdp_sent(&port->channels[idx].xdp_tx);
	stats->packets += xdp.packets;
	stats->bytes += xdp.bytes;
	stats->hw_drops += xdp.drops;
}

/* Counters stay with the channel: add those of the channels not in use */
static void dms_get_base_stats(struct net_device *netdev,
			       struct netdev_queue_stats_rx *rx,
			       struct netdev_queue_stats_tx *tx)
{
	rx->packets = 0;
	rx->bytes = 0;
	rx->alloc_fail = 0;
	rx->hw_drops = 0;
	rx->hw_drop_overruns = 0;
	rx->hw_gro_packets = 0;
	rx->hw_gro_bytes = 0;
	rx->hw_gro_wire_packets = 0;
	rx->hw_gro_wire_bytes = 0;

	tx->packets = 0;
	tx->bytes = 0;
	tx->hw_drops = 0;
	tx->stop = 0;
	tx->hw_gso_packets = 0;
	tx->hw_gso_bytes = 0;
	tx->hw_gso_wire_packets = 0;
	tx->hw_gso_wire_bytes = 0;

	netdev_stat_queue_sum(netdev,
			      netdev->real_num_rx_queues,
			      netdev->num_rx_queues, rx,
			      netdev->real_num_tx_queues,
			      netdev->num_tx_queues, tx);
}

/* What the core has no counters for, of the whole device */
static const char dms_stat_names[][ETH_GSTRING_LEN] = {
	[XDP_ABORTED]	= "rx_xdp_aborted",
	[XDP_DROP]	= "rx_xdp_drop",
	[XDP_PASS]	= "rx_xdp_pass",
	[XDP_TX]	= "rx_xdp_tx",
	[XDP_REDIRECT]	= "rx_xdp_redirect",
	"tx_xdp_packets",
	"tx_xdp_drops",
};

int dms_get_sset_count(struct net_device *netdev, int sset)
{
	return sset == ETH_SS_STATS ? ARRAY_SIZE(dms_stat_names) : -EOPNOTSUPP;
}

void dms_get_strings(struct net_device *netdev, u32 sset, u8 *data)
{
	if (sset == ETH_SS_STATS)
		memcpy(data, dms_stat_names, sizeof(dms_stat_names));
}

void dms_get_ethtool_stats(struct net_device *netdev,
			   struct ethtool_stats *stats, u64 *data)
{
	const struct dms_port *port = netdev_priv(netdev);
	unsigned int i, act, start;

	memset(data, 0, ARRAY_SIZE(dms_stat_names) * sizeof(*data));
	for (i = 0; i < DMS_MAX_CHANNELS; i++) {
		const struct dms_rx_stats *rx = &port->channels[i].rx_stats;
		u64 count[ARRAY_SIZE(rx->xdp)];
		struct dms_xdp_sent xdp;

		do {
			start = u64_stats_fetch_begin(&rx->syncp);
			for (act = 0; act < ARRAY_SIZE(count); act++)
				count[act] = u64_stats_read(&rx->xdp[act]);
		} while (u64_stats_fetch_retry(&rx->syncp, start));

		for (act = 0; act < ARRAY_SIZE(count); act++)
			data[act] += count[act];

		xdp = dms_xdp_sent(&port->channels[i].xdp_tx);
		data[act] += xdp.packets;
		data[act + 1] += xdp.drops;
	}
}

const struct netdev_stat_ops dms_stat_ops = {
	.get_queue_stats_rx	= dms_get_queue_stats_rx,
	.get_queue_stats_tx	= dms_get_queue_stats_tx,
	.get_base_stats		= dms_get_base_stats,
};
