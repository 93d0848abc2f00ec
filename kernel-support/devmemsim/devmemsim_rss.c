// SPDX-License-Identifier: GPL-2.0-only
/*
 * RSS control: the default table and contexts. All under the instance lock;
 * each change publishes a new steering table.
 */
#include <linux/ethtool.h>
#include <linux/netdevice.h>
#include <linux/slab.h>
#include <net/netdev_lock.h>

#include "devmemsim_steer.h"

const struct dms_steering *dms_steering_get(const struct dms_port *port)
{
	return netdev_lock_dereference(port->steering, port->netdev);
}

struct dms_steering *dms_steering_clone(const struct dms_port *port)
{
	return kvmemdup(dms_steering_get(port),
			struct_size_t(struct dms_steering, rule, dms_rules),
			GFP_KERNEL);
}

void dms_steering_publish(struct dms_port *port, struct dms_steering *steering)
{
	struct dms_steering *old;

	old = rcu_replace_pointer(port->steering, steering,
				  lockdep_is_held(&port->netdev->lock));
	kvfree_rcu(old, rcu);
}

/* Default table: all queues in turn */
void dms_rss_spread(struct dms_rss *rss, unsigned int n_queues)
{
	unsigned int i;

	for (i = 0; i < DMS_INDIR_SIZE; i++)
		rss->indir[i] = ethtool_rxfh_indir_default(i, n_queues);
}

static void dms_rss_set(struct dms_rss *rss,
			const struct ethtool_rxfh_param *rxfh)
{
	unsigned int i;

	if (rxfh->indir)
		for (i = 0; i < DMS_INDIR_SIZE; i++)
			rss->indir[i] = rxfh->indir[i];
	if (rxfh->key)
		memcpy(rss->key, rxfh->key, DMS_KEY_SIZE);
}

static int dms_rss_check(const struct ethtool_rxfh_param *rxfh,
			 struct netlink_ext_ack *extack)
{
	if (rxfh->hfunc != ETH_RSS_HASH_NO_CHANGE &&
	    rxfh->hfunc != ETH_RSS_HASH_TOP) {
		NL_SET_ERR_MSG_MOD(extack, "hash function must be toeplitz");
		return -EOPNOTSUPP;
	}

	return 0;
}

u32 dms_get_rxfh_indir_size(struct net_device *netdev)
{
	return DMS_INDIR_SIZE;
}

u32 dms_get_rxfh_key_size(struct net_device *netdev)
{
	return DMS_KEY_SIZE;
}

int dms_get_rxfh(struct net_device *netdev, struct ethtool_rxfh_param *rxfh)
{
	const struct dms_port *port = netdev_priv(netdev);
	const struct dms_rss *rss = &dms_steering_get(port)->rss[0];
	unsigned int i;

	rxfh->hfunc = ETH_RSS_HASH_TOP;
	if (rxfh->indir)
		for (i = 0; i < DMS_INDIR_SIZE; i++)
			rxfh->indir[i] = rss->indir[i];
	if (rxfh->key)
		memcpy(rxfh->key, rss->key, DMS_KEY_SIZE);

	return 0;
}

int dms_set_rxfh(struct net_device *netdev, struct ethtool_rxfh_param *rxfh,
		 struct netlink_ext_ack *extack)
{
	struct dms_port *port = netdev_priv(netdev);
	struct dms_steering *steering;
	int err;

	err = dms_rss_check(rxfh, extack);
	if (err)
		return err;

	steering = dms_steering_clone(port);
	if (!steering)
		return -ENOMEM;

	dms_rss_set(&steering->rss[0], rxfh);
	dms_steering_publish(port, steering);
	return 0;
}

int dms_get_rxfh_fields(struct net_device *netdev,
			struct ethtool_rxfh_fields *fields)
{
	switch (fields->flow_type) {
	case TCP_V4_FLOW:
	case TCP_V6_FLOW:
	case UDP_V4_FLOW:
	case UDP_V6_FLOW:
		fields->data = RXH_IP_SRC | RXH_IP_DST |
			       RXH_L4_B_0_1 | RXH_L4_B_2_3;
		return 0;
	case IPV4_FLOW:
	case IPV6_FLOW:
		fields->data = RXH_IP_SRC | RXH_IP_DST;
		return 0;
	default:
		return -EOPNOTSUPP;
	}
}

int dms_create_rxfh_context(struct net_device *netdev,
			    struct ethtool_rxfh_context *ctx,
			    const struct ethtool_rxfh_param *rxfh,
			    struct netlink_ext_ack *extack)
{
	struct dms_port *port = netdev_priv(netdev);
	struct dms_steering *steering;
	struct dms_rss *rss;
	unsigned int i;
	int err;

	err = dms_rss_check(rxfh, extack);
	if (err)
		return err;

	steering = dms_steering_clone(port);
	if (!steering)
		return -ENOMEM;

	rss = &steering->rss[rxfh->rss_context];
	*rss = steering->rss[0];
	dms_rss_spread(rss, steering->n_queues);
	dms_rss_set(rss, rxfh);

	ctx->hfunc = ETH_RSS_HASH_TOP;
	for (i = 0; i < DMS_INDIR_SIZE; i++)
		ethtool_rxfh_context_indir(ctx)[i] = rss->indir[i];
	memcpy(ethtool_rxfh_context_key(ctx), rss->key, DMS_KEY_SIZE);

	dms_steering_publish(port, steering);
	return 0;
}

int dms_modify_rxfh_context(struct net_device *netdev,
			    struct ethtool_rxfh_context *ctx,
			    const struct ethtool_rxfh_param *rxfh,
			    struct netlink_ext_ack *extack)
{
	struct dms_port *port = netdev_priv(netdev);
	struct dms_steering *steering;
	int err;

	err = dms_rss_check(rxfh, extack);
	if (err)
		return err;

	steering = dms_steering_clone(port);
	if (!steering)
		return -ENOMEM;

	dms_rss_set(&steering->rss[rxfh->rss_context], rxfh);
	dms_steering_publish(port, steering);
	return 0;
}

/* The core does not let a context go that a rule points to, so nothing looks
 * at its table any more.
 */
int dms_remove_rxfh_context(struct net_device *netdev,
			    struct ethtool_rxfh_context *ctx, u32 rss_context,
			    struct netlink_ext_ack *extack)
{
	return 0;
}
