// SPDX-License-Identifier: GPL-2.0-only
#include <linux/ethtool.h>
#include <linux/netdevice.h>
#include <net/netdev_lock.h>
#include <net/netdev_queues.h>

#include "devmemsim.h"
#include "devmemsim_steer.h"

#define DMS_MAX_RX_USECS	100000

static void dms_get_drvinfo(struct net_device *netdev,
			    struct ethtool_drvinfo *drvinfo)
{
	strscpy(drvinfo->driver, DMS_NAME, sizeof(drvinfo->driver));
	strscpy(drvinfo->bus_info, dev_name(netdev->dev.parent),
		sizeof(drvinfo->bus_info));
}

static int dms_get_link_ksettings(struct net_device *netdev,
				  struct ethtool_link_ksettings *cmd)
{
	cmd->base.speed = SPEED_100000;
	cmd->base.duplex = DUPLEX_FULL;
	cmd->base.port = PORT_OTHER;
	cmd->base.autoneg = AUTONEG_DISABLE;
	return 0;
}

/* The wire never asks for a pause, and needs no error correction */
static void dms_get_pauseparam(struct net_device *netdev,
			       struct ethtool_pauseparam *pause)
{
}

static void dms_get_pause_stats(struct net_device *netdev,
				struct ethtool_pause_stats *stats)
{
	stats->tx_pause_frames = 0;
	stats->rx_pause_frames = 0;
}

static int dms_get_fecparam(struct net_device *netdev,
			    struct ethtool_fecparam *fec)
{
	fec->fec = ETHTOOL_FEC_OFF;
	fec->active_fec = ETHTOOL_FEC_OFF;
	return 0;
}

static void dms_get_fec_stats(struct net_device *netdev,
			      struct ethtool_fec_stats *stats,
			      struct ethtool_fec_hist *hist)
{
	stats->corrected_blocks.total = 0;
	stats->uncorrectable_blocks.total = 0;
}

static void dms_get_ringparam(struct net_device *netdev,
			      struct ethtool_ringparam *ring,
			      struct kernel_ethtool_ringparam *kernel_ring,
			      struct netlink_ext_ack *extack)
{
	const struct dms_port *port = netdev_priv(netdev);

	ring->rx_max_pending = DMS_MAX_RX_PENDING;
	ring->tx_max_pending = DMS_MAX_TX_PENDING;
	ring->rx_pending = port->rx_pending;
	ring->tx_pending = port->tx_pending;

	kernel_ring->tcp_data_split = port->hds ?
				      ETHTOOL_TCP_DATA_SPLIT_ENABLED :
				      ETHTOOL_TCP_DATA_SPLIT_DISABLED;
	kernel_ring->hds_thresh = port->hds_thresh;
	kernel_ring->hds_thresh_max = DMS_HDS_THRESH_MAX;
}

static int dms_set_ringparam(struct net_device *netdev,
			     struct ethtool_ringparam *ring,
			     struct kernel_ethtool_ringparam *kernel_ring,
			     struct netlink_ext_ack *extack)
{
	struct dms_port *port = netdev_priv(netdev);
	int err;

	if (ring->rx_pending < DMS_MIN_RX_PENDING ||
	    ring->tx_pending < DMS_MIN_TX_PENDING) {
		NL_SET_ERR_MSG_FMT_MOD(extack,
				       "rings must have at least %u descriptors",
				       DMS_MIN_RX_PENDING);
		return -EINVAL;
	}

	err = dms_rings_reshape(port, ring->rx_pending, netdev->mtu);
	if (err) {
		NL_SET_ERR_MSG_MOD(extack, "cannot restart an rx queue");
		return err;
	}

	dms_hds_update(port, netdev->cfg_pending->hds_config);
	WRITE_ONCE(port->hds_thresh, netdev->cfg_pending->hds_thresh);
	WRITE_ONCE(port->tx_pending, ring->tx_pending);
	return 0;
}

static int dms_get_coalesce(struct net_device *netdev,
			    struct ethtool_coalesce *coal,
			    struct kernel_ethtool_coalesce *kernel_coal,
			    struct netlink_ext_ack *extack)
{
	const struct dms_port *port = netdev_priv(netdev);

	coal->rx_coalesce_usecs = port->rx_usecs;
	return 0;
}

static int dms_set_coalesce(struct net_device *netdev,
			    struct ethtool_coalesce *coal,
			    struct kernel_ethtool_coalesce *kernel_coal,
			    struct netlink_ext_ack *extack)
{
	struct dms_port *port = netdev_priv(netdev);

	if (coal->rx_coalesce_usecs > DMS_MAX_RX_USECS) {
		NL_SET_ERR_MSG_FMT_MOD(extack, "rx-usecs is at most %u",
				       DMS_MAX_RX_USECS);
		return -ERANGE;
	}

	WRITE_ONCE(port->rx_usecs, coal->rx_coalesce_usecs);
	return 0;
}

static int dms_get_tunable(struct net_device *netdev,
			   const struct ethtool_tunable *tuna, void *data)
{
	const struct dms_port *port = netdev_priv(netdev);

	if (tuna->id != ETHTOOL_RX_COPYBREAK)
		return -EOPNOTSUPP;

	*(u32 *)data = port->rx_copybreak;
	return 0;
}

static int dms_set_tunable(struct net_device *netdev,
			   const struct ethtool_tunable *tuna, const void *data)
{
	struct dms_port *port = netdev_priv(netdev);
	u32 value = *(const u32 *)data;

	if (tuna->id != ETHTOOL_RX_COPYBREAK)
		return -EOPNOTSUPP;
	if (value > DMS_RX_COPYBREAK_MAX)
		return -EINVAL;

	WRITE_ONCE(port->rx_copybreak, value);
	return 0;
}

static void dms_get_channels(struct net_device *netdev,
			     struct ethtool_channels *channels)
{
	channels->max_combined = DMS_MAX_CHANNELS;
	channels->combined_count = netdev->real_num_rx_queues;
}

static int dms_ethtool_set_channels(struct net_device *netdev,
				    struct ethtool_channels *channels)
{
	return dms_set_channels(netdev_priv(netdev), channels->combined_count);
}

static u32 dms_get_rx_ring_count(struct net_device *netdev)
{
	return netdev->real_num_rx_queues;
}

const struct ethtool_ops dms_ethtool_ops = {
	.cap_rss_rxnfc_adds	= true,
	.supported_input_xfrm	= RXH_XFRM_SYM_XOR | RXH_XFRM_SYM_OR_XOR,
	.rxfh_per_ctx_fields	= true,
	.rxfh_per_ctx_key	= true,
	.rxfh_indir_space	= DMS_MAX_INDIR_SIZE,
	.rxfh_max_num_contexts	= DMS_MAX_RSS,
	.supported_ring_params	= ETHTOOL_RING_USE_TCP_DATA_SPLIT |
				  ETHTOOL_RING_USE_HDS_THRS,
	.supported_coalesce_params = ETHTOOL_COALESCE_RX_USECS,
	/* For netif_set_real_num_queues() */
	.op_needs_rtnl		= ETHTOOL_OP_NEEDS_RTNL_SCHANNELS,
	.get_drvinfo		= dms_get_drvinfo,
	.get_link		= ethtool_op_get_link,
	.get_link_ksettings	= dms_get_link_ksettings,
	.get_ts_info		= ethtool_op_get_ts_info,
	.get_pauseparam		= dms_get_pauseparam,
	.get_pause_stats	= dms_get_pause_stats,
	.get_fecparam		= dms_get_fecparam,
	.get_fec_stats		= dms_get_fec_stats,
	.get_ringparam		= dms_get_ringparam,
	.set_ringparam		= dms_set_ringparam,
	.get_coalesce		= dms_get_coalesce,
	.set_coalesce		= dms_set_coalesce,
	.get_tunable		= dms_get_tunable,
	.set_tunable		= dms_set_tunable,
	.get_sset_count		= dms_get_sset_count,
	.get_strings		= dms_get_strings,
	.get_ethtool_stats	= dms_get_ethtool_stats,
	.get_channels		= dms_get_channels,
	.set_channels		= dms_ethtool_set_channels,
	.get_rx_ring_count	= dms_get_rx_ring_count,
	.get_rxfh_indir_size	= dms_get_rxfh_indir_size,
	.get_rxfh_key_size	= dms_get_rxfh_key_size,
	.get_rxfh		= dms_get_rxfh,
	.set_rxfh		= dms_set_rxfh,
	.get_rxfh_fields	= dms_get_rxfh_fields,
	.set_rxfh_fields	= dms_set_rxfh_fields,
	.create_rxfh_context	= dms_create_rxfh_context,
	.modify_rxfh_context	= dms_modify_rxfh_context,
	.remove_rxfh_context	= dms_remove_rxfh_context,
	.get_rxnfc		= dms_get_rxnfc,
	.set_rxnfc		= dms_set_rxnfc,
};
