// SPDX-License-Identifier: GPL-2.0-only
/*
 * The net device: it opens, closes, and is configured.
 */
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <net/netdev_lock.h>
#include <net/netdev_queues.h>

#include "devmemsim.h"
#include "devmemsim_fault.h"
#include "devmemsim_steer.h"

#define DMS_FEATURES	(NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_HIGHDMA | \
			 NETIF_F_ALL_TSO | NETIF_F_RXHASH | NETIF_F_GRO_HW | \
			 NETIF_F_NTUPLE | DMS_TUNNEL_FEATURES)

/* Large packets in a tunnel are taken apart on the way out */
#define DMS_TUNNEL_FEATURES \
	(NETIF_F_GSO_UDP_TUNNEL | NETIF_F_GSO_UDP_TUNNEL_CSUM | \
	 NETIF_F_GSO_GRE | NETIF_F_GSO_GRE_CSUM | \
	 NETIF_F_GSO_IPXIP4 | NETIF_F_GSO_IPXIP6)
#define DMS_ENC_FEATURES	(NETIF_F_SG | NETIF_F_HW_CSUM | \
				 NETIF_F_HIGHDMA | NETIF_F_ALL_TSO | \
				 DMS_TUNNEL_FEATURES)

#define DMS_XDP_FEATURES (NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT | \
			  NETDEV_XDP_ACT_RX_SG | NETDEV_XDP_ACT_NDO_XMIT | \
			  NETDEV_XDP_ACT_NDO_XMIT_SG)

/* There is a carrier when both ends are open */
static void dms_link_set(struct dms_port *port, bool up)
{
	struct dms_link *link = port->link;
	int i;

	spin_lock(&link->lock);
	WRITE_ONCE(port->up, up);
	for (i = 0; i < ARRAY_SIZE(link->port); i++) {
		if (port->up && port->peer->up)
			netif_carrier_on(link->port[i]->netdev);
		else
			netif_carrier_off(link->port[i]->netdev);
	}
	spin_unlock(&link->lock);
}

static int dms_open(struct net_device *netdev)
{
	struct dms_port *port = netdev_priv(netdev);
	unsigned int i;
	int err;

	err = dms_channels_alloc(port, 0, netdev->real_num_rx_queues);
	if (err)
		return err;

	for (i = 0; i < netdev->num_tx_queues; i++)
		netdev_tx_reset_queue(netdev_get_tx_queue(netdev, i));
	for (i = 0; i < netdev->real_num_rx_queues; i++)
		dms_channel_start(port, i);

	netif_tx_start_all_queues(netdev);
	dms_link_set(port, true);
	return 0;
}

static int dms_stop(struct net_device *netdev)
{
	struct dms_port *port = netdev_priv(netdev);
	unsigned int i;

	dms_link_set(port, false);
	netif_tx_disable(netdev);

	/* The peer's xmit goes by port->up */
	synchronize_net();

	for (i = 0; i < netdev->real_num_rx_queues; i++) {
		dms_channel_stop(port, i);
		dms_channel_free(port, i);
	}

	/* What we sent is the peer's to complete: it is open and polls, or
	 * about to close and purges.
	 */
	while (dms_tx_in_flight(port))
		usleep_range(100, 200);

	/* It counts a frame before it tells the Tx queue of it, and that must
	 * not come after the queue is reset by the next dms_open().
	 */
	synchronize_net();

	return 0;
}

static int dms_set_features(struct net_device *netdev,
			    netdev_features_t features)
{
	struct dms_port *port = netdev_priv(netdev);

	/* Without ntuple filters there are no rules, as ethtool -K goes */
	if (netdev->features & ~features & NETIF_F_NTUPLE)
		return dms_rules_flush(port);

	return 0;
}

/* Programs see packets of a wire, none that were put together. The peer's xmit
 * goes by this feature.
 */
static netdev_features_t dms_fix_features(struct net_device *netdev,
					  netdev_features_t features)
{
	struct dms_port *port = netdev_priv(netdev);

	if (rcu_access_pointer(port->xdp_prog))
		features &= ~NETIF_F_GRO_HW;

	return features;
}

static int dms_change_mtu(struct net_device *netdev, int mtu)
{
	struct dms_port *port = netdev_priv(netdev);

	if (!dms_xdp_mtu_fits(port, mtu)) {
		netdev_info(netdev, "MTU %d exceeds the maximum of a single-buffer XDP program\n",
			    mtu);
		return -EINVAL;
	}

	return dms_rings_reshape(port, port->rx_pending, mtu);
}

static const struct net_device_ops dms_netdev_ops = {
	.ndo_open		= dms_open,
	.ndo_stop		= dms_stop,
	.ndo_start_xmit		= dms_start_xmit,
	.ndo_fix_features	= dms_fix_features,
	.ndo_set_features	= dms_set_features,
	.ndo_change_mtu		= dms_change_mtu,
	.ndo_bpf		= dms_bpf,
	.ndo_xdp_xmit		= dms_xdp_xmit,
	.ndo_get_stats64	= dms_get_stats64,
	.ndo_set_mac_address	= eth_mac_addr,
	.ndo_validate_addr	= eth_validate_addr,
};

static int dms_steering_init(struct dms_port *port)
{
	struct dms_steering *steering;

	steering = kvzalloc(struct_size(steering, rule, dms_rules), GFP_KERNEL);
	if (!steering)
		return -ENOMEM;

	steering->n_queues = DMS_DEF_CHANNELS;
	dms_rss_init(&steering->rss[0], DMS_DEF_CHANNELS);
	rcu_assign_pointer(port->steering, steering);
	return 0;
}

static void dms_netdev_setup(struct net_device *netdev, unsigned int id)
{
	netdev_lockdep_set_classes(netdev);

	netdev->netdev_ops = &dms_netdev_ops;
	netdev->ethtool_ops = &dms_ethtool_ops;
	netdev->stat_ops = &dms_stat_ops;
	netdev->queue_mgmt_ops = &dms_queue_mgmt_ops;
	netdev->netmem_tx = NETMEM_TX_DMA;
	netdev->xdp_features = DMS_XDP_FEATURES;

	/* Frames wait on the wire, with what is known of them in skb->cb */
	netdev->priv_flags &= ~IFF_TX_SKB_SHARING;
	netdev->hw_features = DMS_FEATURES;
	netdev->features = DMS_FEATURES | NETIF_F_RXCSUM;
	netdev->hw_enc_features = DMS_ENC_FEATURES;
	netdev->max_mtu = DMS_MAX_MTU;
	netdev->dev_port = id;
	eth_hw_addr_random(netdev);
	snprintf(netdev->name, sizeof(netdev->name), "dms%u", id);
	netif_carrier_off(netdev);
}

struct net_device *dms_netdev_alloc(struct device *parent,
				    struct dms_link *link, unsigned int id)
{
	struct net_device *netdev;
	struct dms_port *port;
	unsigned int i;
	int err;

	netdev = alloc_etherdev_mqs(sizeof(*port), DMS_MAX_CHANNELS,
				    DMS_MAX_CHANNELS);
	if (!netdev)
		return ERR_PTR(-ENOMEM);

	SET_NETDEV_DEV(netdev, parent);
	dms_netdev_setup(netdev, id);

	port = netdev_priv(netdev);
	port->netdev = netdev;
	port->link = link;
	port->hds = true;
	port->receive = dms_receive;
	port->rx_pending = DMS_DEF_RX_PENDING;
	port->tx_pending = DMS_DEF_TX_PENDING;

	err = dms_faults_alloc(port);
	if (err)
		goto err_free_netdev;

	err = dms_steering_init(port);
	if (err)
		goto err_free_faults;

	err = netif_set_real_num_queues(netdev, DMS_DEF_CHANNELS,
					DMS_DEF_CHANNELS);
	if (err)
		goto err_free_steering;

	err = dms_irqs_alloc(port, id);
	if (err)
		goto err_free_steering;

	for (i = 0; i < DMS_MAX_CHANNELS; i++)
		dms_channel_init(port, i);

	link->port[id] = port;
	return netdev;

err_free_steering:
	kvfree(rcu_dereference_protected(port->steering, true));
err_free_faults:
	dms_faults_free(port);
err_free_netdev:
	free_netdev(netdev);
	return ERR_PTR(err);
}

void dms_netdev_free(struct net_device *netdev)
{
	struct dms_port *port = netdev_priv(netdev);

	dms_irqs_free(port);
	kvfree(rcu_dereference_protected(port->steering, true));
	dms_faults_free(port);
	free_netdev(netdev);
}
