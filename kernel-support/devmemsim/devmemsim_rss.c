// SPDX-License-Identifier: GPL-2.0-only
/*
 * RSS control: the default table and contexts. All under the instance lock;
 * each change publishes a new steering table.
 */
#include <linux/ethtool.h>
#include <linux/log2.h>
#include <linux/netdevice.h>
#include <linux/slab.h>

#include "devmemsim_steer.h"

/* A power of two, so that a table which is repeated to a larger size sends
 * each flow where it did before.
 */
static unsigned int dms_indir_size(unsigned int n_queues)
{
	return clamp(roundup_pow_of_two(n_queues) * DMS_INDIR_PER_QUEUE,
		     DMS_MIN_INDIR_SIZE, DMS_MAX_INDIR_SIZE);
}

/* Default table: all queues in turn */
void dms_rss_spread(struct dms_rss *rss, unsigned int n_queues)
{
	unsigned int i, size = dms_indir_size(n_queues);

	for (i = 0; i < DMS_MAX_INDIR_SIZE; i++)
		rss->indir[i] = ethtool_rxfh_indir_default(i % size, n_queues);
}

void dms_rss_init(struct dms_rss *rss, unsigned int n_queues)
{
	const u32 addrs = RXH_IP_SRC | RXH_IP_DST;
	const u32 ports = RXH_L4_B_0_1 | RXH_L4_B_2_3;

	dms_rss_spread(rss, n_queues);
	netdev_rss_key_fill(rss->key, DMS_KEY_SIZE);
	rss->fields[DMS_HASH_IPV4] = addrs;
	rss->fields[DMS_HASH_IPV6] = addrs;
	rss->fields[DMS_HASH_TCPV4] = addrs | ports;
	rss->fields[DMS_HASH_TCPV6] = addrs | ports;
	rss->fields[DMS_HASH_UDPV4] = addrs | ports;
	rss->fields[DMS_HASH_UDPV6] = addrs | ports;
	rss->used = true;
}

/* The size of the tables goes with the number of queues. What the user has set
 * must not be lost by that.
 */
int dms_rss_can_resize(const struct dms_port *port, unsigned int n_queues)
{
	const struct dms_rss *rss = &dms_steering_get(port)->rss[0];
	struct net_device *netdev = port->netdev;
	u32 *indir, i, old_size, size;
	bool can;

	old_size = dms_indir_size(netdev->real_num_rx_queues);
	size = dms_indir_size(n_queues);
	if (size == old_size)
		return 0;

	indir = kmalloc_array(old_size, sizeof(*indir), GFP_KERNEL);
	if (!indir)
		return -ENOMEM;

	for (i = 0; i < old_size; i++)
		indir[i] = rss->indir[i];
	can = ethtool_rxfh_indir_can_resize(netdev, indir, old_size, size);
	kfree(indir);

	return can ? ethtool_rxfh_ctxs_can_resize(netdev, size) : -EINVAL;
}

/* Our own tables need no change: they are repeated to the largest size, and
 * the smaller one may be smaller because it repeats.
 */
void dms_rss_resize(struct dms_port *port, unsigned int old_queues,
		    unsigned int n_queues)
{
	if (dms_indir_size(old_queues) != dms_indir_size(n_queues))
		ethtool_rxfh_ctxs_resize(port->netdev,
					 dms_indir_size(n_queues));
}

/* A hash of source without destination differs by direction */
static bool dms_fields_symmetric(u32 fields)
{
	return !(fields & RXH_IP_SRC) == !(fields & RXH_IP_DST) &&
	       !(fields & RXH_L4_B_0_1) == !(fields & RXH_L4_B_2_3) &&
	       !(fields & RXH_IP6_FL);
}

static int dms_rss_check(const struct dms_rss *rss,
			 struct netlink_ext_ack *extack)
{
	unsigned int i;

	if (!rss->xfrm)
		return 0;

	for (i = 0; i < DMS_N_HASH_TYPES; i++)
		if (!dms_fields_symmetric(rss->fields[i])) {
			NL_SET_ERR_MSG_MOD(extack,
					   "hash fields are not symmetric");
			return -EINVAL;
		}

	return 0;
}

/* Publish a table that differs from the one in use by what was done to a
 * context, or free it if that must not be.
 */
static int dms_rss_publish(struct dms_port *port, struct dms_steering *steering,
			   u32 context, struct netlink_ext_ack *extack)
{
	int err;

	err = dms_rss_check(&steering->rss[context], extack);
	if (err) {
		kvfree(steering);
		return err;
	}

	return dms_steering_try(port, steering, extack);
}

static int dms_rxfh_check(const struct ethtool_rxfh_param *rxfh,
			  struct netlink_ext_ack *extack)
{
	if (rxfh->hfunc != ETH_RSS_HASH_NO_CHANGE &&
	    rxfh->hfunc != ETH_RSS_HASH_TOP) {
		NL_SET_ERR_MSG_MOD(extack, "hash function must be toeplitz");
		return -EOPNOTSUPP;
	}

	return 0;
}

static void dms_rss_set(struct dms_rss *rss,
			const struct ethtool_rxfh_param *rxfh)
{
	unsigned int i;

	if (rxfh->indir)
		for (i = 0; i < DMS_MAX_INDIR_SIZE; i++)
			rss->indir[i] = rxfh->indir[i % rxfh->indir_size];
	if (rxfh->key)
		memcpy(rss->key, rxfh->key, DMS_KEY_SIZE);
	if (rxfh->input_xfrm != RXH_XFRM_NO_CHANGE)
		rss->xfrm = rxfh->input_xfrm;
}

u32 dms_get_rxfh_indir_size(struct net_device *netdev)
{
	return dms_indir_size(netdev->real_num_rx_queues);
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
	rxfh->input_xfrm = rss->xfrm;
	if (rxfh->indir)
		for (i = 0; i < dms_get_rxfh_indir_size(netdev); i++)
			rxfh->indir[i] = rss->indir[i];
	if (rxfh->key)
		memcpy(rxfh->key, rss->key, DMS_KEY_SIZE);

	return 0;
}

int dms_set_rxfh(struct net_device *netdev, struct ethtool_rxfh_param *rxfh,
		 struct netlink_ext_ack *extack)
{
	return dms_modify_rxfh_context(netdev, NULL, rxfh, extack);
}

static int dms_hash_type(u32 flow_type)
{
	switch (flow_type) {
	case IPV4_FLOW:
		return DMS_HASH_IPV4;
	case IPV6_FLOW:
		return DMS_HASH_IPV6;
	case TCP_V4_FLOW:
		return DMS_HASH_TCPV4;
	case TCP_V6_FLOW:
		return DMS_HASH_TCPV6;
	case UDP_V4_FLOW:
		return DMS_HASH_UDPV4;
	case UDP_V6_FLOW:
		return DMS_HASH_UDPV6;
	default:
		return -EOPNOTSUPP;
	}
}

static u32 dms_hash_fields(int type)
{
	u32 fields = RXH_IP_SRC | RXH_IP_DST;

	if (type != DMS_HASH_IPV4 && type != DMS_HASH_IPV6)
		fields |= RXH_L4_B_0_1 | RXH_L4_B_2_3;
	if (type == DMS_HASH_IPV6 || type == DMS_HASH_TCPV6 ||
	    type == DMS_HASH_UDPV6)
		fields |= RXH_IP6_FL;

	return fields;
}

/* The core does not look whether the context exists */
static bool dms_rss_exists(const struct dms_steering *steering, u32 context)
{
	return context < DMS_MAX_RSS && steering->rss[context].used;
}

int dms_get_rxfh_fields(struct net_device *netdev,
			struct ethtool_rxfh_fields *fields)
{
	const struct dms_port *port = netdev_priv(netdev);
	const struct dms_steering *steering = dms_steering_get(port);
	int type;

	type = dms_hash_type(fields->flow_type);
	if (type < 0)
		return type;
	if (!dms_rss_exists(steering, fields->rss_context))
		return -ENOENT;

	fields->data = steering->rss[fields->rss_context].fields[type];
	return 0;
}

int dms_set_rxfh_fields(struct net_device *netdev,
			const struct ethtool_rxfh_fields *fields,
			struct netlink_ext_ack *extack)
{
	struct dms_port *port = netdev_priv(netdev);
	struct dms_steering *steering;
	int type;

	type = dms_hash_type(fields->flow_type);
	if (type < 0)
		return type;
	if (fields->data & ~dms_hash_fields(type)) {
		NL_SET_ERR_MSG_MOD(extack,
				   "cannot hash these fields of this flow type");
		return -EOPNOTSUPP;
	}
	if (!dms_rss_exists(dms_steering_get(port), fields->rss_context))
		return -ENOENT;

	steering = dms_steering_clone(port);
	if (!steering)
		return -ENOMEM;

	steering->rss[fields->rss_context].fields[type] = fields->data;
	return dms_rss_publish(port, steering, fields->rss_context, extack);
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

	err = dms_rxfh_check(rxfh, extack);
	if (err)
		return err;

	steering = dms_steering_clone(port);
	if (!steering)
		return -ENOMEM;

	rss = &steering->rss[rxfh->rss_context];
	*rss = steering->rss[0];
	/* No queue of a context can go, so do not hold all of them */
	dms_rss_spread(rss, min(steering->n_queues, DMS_DEF_CHANNELS));
	dms_rss_set(rss, rxfh);
	err = dms_rss_publish(port, steering, rxfh->rss_context, extack);
	if (err)
		return err;

	ctx->hfunc = ETH_RSS_HASH_TOP;
	ctx->input_xfrm = rss->xfrm;
	for (i = 0; i < ctx->indir_size; i++)
		ethtool_rxfh_context_indir(ctx)[i] = rss->indir[i];
	memcpy(ethtool_rxfh_context_key(ctx), rss->key, DMS_KEY_SIZE);
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

	err = dms_rxfh_check(rxfh, extack);
	if (err)
		return err;

	steering = dms_steering_clone(port);
	if (!steering)
		return -ENOMEM;

	dms_rss_set(&steering->rss[rxfh->rss_context], rxfh);
	return dms_rss_publish(port, steering, rxfh->rss_context, extack);
}

/* The core does not let a context go that a rule points to */
int dms_remove_rxfh_context(struct net_device *netdev,
			    struct ethtool_rxfh_context *ctx, u32 rss_context,
			    struct netlink_ext_ack *extack)
{
	struct dms_port *port = netdev_priv(netdev);
	struct dms_steering *steering;

	steering = dms_steering_clone(port);
	if (!steering)
		return -ENOMEM;

	steering->rss[rss_context].used = false;
	dms_steering_publish(port, steering);
	return 0;
}
