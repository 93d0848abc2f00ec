// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ntuple rules. All under the instance lock; each change publishes a new
 * steering table.
 */
#include <linux/ethtool.h>
#include <linux/netdevice.h>
#include <linux/slab.h>

#include "devmemsim_steer.h"

static void dms_rule_set_v4(struct dms_flow *flow,
			    const struct ethtool_tcpip4_spec *spec)
{
	flow->src[0] = spec->ip4src;
	flow->dst[0] = spec->ip4dst;
	flow->sport = spec->psrc;
	flow->dport = spec->pdst;
}

static void dms_rule_set_v6(struct dms_flow *flow,
			    const struct ethtool_tcpip6_spec *spec)
{
	memcpy(flow->src, spec->ip6src, sizeof(flow->src));
	memcpy(flow->dst, spec->ip6dst, sizeof(flow->dst));
	flow->sport = spec->psrc;
	flow->dport = spec->pdst;
}

static void dms_rule_set_ip4(struct dms_flow *flow,
			     const struct ethtool_usrip4_spec *spec)
{
	flow->src[0] = spec->ip4src;
	flow->dst[0] = spec->ip4dst;
	flow->proto = spec->proto;
}

static void dms_rule_set_ip6(struct dms_flow *flow,
			     const struct ethtool_usrip6_spec *spec)
{
	memcpy(flow->src, spec->ip6src, sizeof(flow->src));
	memcpy(flow->dst, spec->ip6dst, sizeof(flow->dst));
	flow->proto = spec->l4_proto;
}

static int dms_rule_set_match(struct dms_rule *rule,
			      const struct ethtool_rx_flow_spec *fs)
{
	u32 type = fs->flow_type & ~FLOW_RSS;
	unsigned int i;

	switch (type) {
	case TCP_V4_FLOW:
	case UDP_V4_FLOW:
		/* The specs of TCP and UDP are one type */
		if (fs->m_u.tcp_ip4_spec.tos)
			return -EOPNOTSUPP;
		dms_rule_set_v4(&rule->value, &fs->h_u.tcp_ip4_spec);
		dms_rule_set_v4(&rule->mask, &fs->m_u.tcp_ip4_spec);
		rule->value.ip_version = 4;
		break;
	case TCP_V6_FLOW:
	case UDP_V6_FLOW:
		if (fs->m_u.tcp_ip6_spec.tclass)
			return -EOPNOTSUPP;
		dms_rule_set_v6(&rule->value, &fs->h_u.tcp_ip6_spec);
		dms_rule_set_v6(&rule->mask, &fs->m_u.tcp_ip6_spec);
		rule->value.ip_version = 6;
		break;
	case IPV4_USER_FLOW:
		if (fs->m_u.usr_ip4_spec.l4_4_bytes ||
		    fs->m_u.usr_ip4_spec.tos)
			return -EOPNOTSUPP;
		dms_rule_set_ip4(&rule->value, &fs->h_u.usr_ip4_spec);
		dms_rule_set_ip4(&rule->mask, &fs->m_u.usr_ip4_spec);
		rule->value.ip_version = 4;
		break;
	case IPV6_USER_FLOW:
		if (fs->m_u.usr_ip6_spec.l4_4_bytes ||
		    fs->m_u.usr_ip6_spec.tclass)
			return -EOPNOTSUPP;
		dms_rule_set_ip6(&rule->value, &fs->h_u.usr_ip6_spec);
		dms_rule_set_ip6(&rule->mask, &fs->m_u.usr_ip6_spec);
		rule->value.ip_version = 6;
		break;
	default:
		return -EOPNOTSUPP;
	}

	if (type == TCP_V4_FLOW || type == TCP_V6_FLOW) {
		rule->value.proto = IPPROTO_TCP;
		rule->mask.proto = U8_MAX;
	} else if (type == UDP_V4_FLOW || type == UDP_V6_FLOW) {
		rule->value.proto = IPPROTO_UDP;
		rule->mask.proto = U8_MAX;
	}
	rule->mask.ip_version = U8_MAX;
	for (i = 0; i < ARRAY_SIZE(rule->value.word); i++)
		rule->value.word[i] &= rule->mask.word[i];

	return 0;
}

static int dms_rule_set(struct dms_rule *rule, const struct dms_port *port,
			const struct ethtool_rxnfc *nfc)
{
	const struct dms_steering *steering = dms_steering_get(port);
	const struct ethtool_rx_flow_spec *fs = &nfc->fs;

	memset(rule, 0, sizeof(*rule));

	if (fs->ring_cookie == RX_CLS_FLOW_DISC ||
	    fs->ring_cookie == RX_CLS_FLOW_WAKE)
		return -EOPNOTSUPP;

	if (fs->ring_cookie >= steering->n_queues)
		return -EINVAL;

	rule->queue = fs->ring_cookie;
	rule->spread = fs->flow_type & FLOW_RSS;
	rule->rss = rule->spread ? nfc->rss_context : 0;
	if (!dms_rule_fits(steering, rule))
		return -EINVAL;

	rule->fs = *fs;
	return dms_rule_set_match(rule, fs);
}

/* Exact rules grow up from the first location and others down from the last,
 * so that an exact rule always wins over one with wildcards.
 */
static int dms_rule_pick(const struct dms_steering *steering,
			 const struct dms_rule *rule)
{
	bool exact;
	int loc;

	for_each_set_bit(loc, steering->used, dms_rules)
		if (!memcmp(&steering->rule[loc].mask, &rule->mask,
			    sizeof(rule->mask)) &&
		    !memcmp(&steering->rule[loc].value, &rule->value,
			    sizeof(rule->value)))
			return -EEXIST;

	exact = rule->mask.src[0] && rule->mask.dst[0] &&
		rule->mask.sport && rule->mask.dport;
	if (exact) {
		loc = find_first_zero_bit(steering->used, dms_rules);
		return loc < dms_rules ? loc : -ENOSPC;
	}

	for (loc = dms_rules - 1; loc >= 0; loc--)
		if (!test_bit(loc, steering->used))
			return loc;

	return -ENOSPC;
}

static int dms_rule_insert(struct dms_port *port, struct ethtool_rxnfc *nfc)
{
	struct dms_steering *steering;
	struct dms_rule *rule;
	int err, loc;

	if (!(port->netdev->features & NETIF_F_NTUPLE))
		return -EOPNOTSUPP;

	rule = kzalloc_obj(*rule, GFP_KERNEL);
	if (!rule)
		return -ENOMEM;

	err = dms_rule_set(rule, port, nfc);
	if (err)
		goto out_free_rule;

	steering = dms_steering_clone(port);
	if (!steering) {
		err = -ENOMEM;
		goto out_free_rule;
	}

	if (nfc->fs.location == RX_CLS_LOC_ANY)
		loc = dms_rule_pick(steering, rule);
	else
		loc = nfc->fs.location < dms_rules ?
			(int)nfc->fs.location : -EINVAL;
	if (loc < 0) {
		err = loc;
		goto err_free_steering;
	}

	nfc->fs.location = loc;
	rule->fs.location = loc;
	steering->rule[loc] = *rule;
	__set_bit(loc, steering->used);
	steering->n_rules = bitmap_weight(steering->used, dms_rules);
	dms_steering_publish(port, steering);
	goto out_free_rule;

err_free_steering:
	kvfree(steering);
out_free_rule:
	kfree(rule);
	return err;
}

static int dms_rule_delete(struct dms_port *port, u32 loc)
{
	struct dms_steering *steering;

	if (loc >= dms_rules ||
	    !test_bit(loc, dms_steering_get(port)->used))
		return -ENOENT;

	steering = dms_steering_clone(port);
	if (!steering)
		return -ENOMEM;

	__clear_bit(loc, steering->used);
	steering->n_rules--;
	dms_steering_publish(port, steering);
	return 0;
}

int dms_rules_flush(struct dms_port *port)
{
	struct dms_steering *steering;

	if (!dms_steering_get(port)->n_rules)
		return 0;

	steering = dms_steering_clone(port);
	if (!steering)
		return -ENOMEM;

	bitmap_zero(steering->used, dms_rules);
	steering->n_rules = 0;
	dms_steering_publish(port, steering);
	return 0;
}

static int dms_get_rule(const struct dms_steering *steering,
			struct ethtool_rxnfc *nfc)
{
	const struct dms_rule *rule;

	if (nfc->fs.location >= dms_rules ||
	    !test_bit(nfc->fs.location, steering->used))
		return -ENOENT;

	rule = &steering->rule[nfc->fs.location];
	nfc->fs = rule->fs;
	nfc->data = dms_rules;
	if (rule->spread)
		nfc->rss_context = rule->rss;

	return 0;
}

static int dms_get_rule_locs(const struct dms_steering *steering,
			     struct ethtool_rxnfc *nfc, u32 *rule_locs)
{
	unsigned int loc, n = 0;

	if (steering->n_rules > nfc->rule_cnt)
		return -EMSGSIZE;

	for_each_set_bit(loc, steering->used, dms_rules)
		rule_locs[n++] = loc;

	nfc->rule_cnt = n;
	nfc->data = dms_rules;
	return 0;
}

int dms_get_rxnfc(struct net_device *netdev, struct ethtool_rxnfc *nfc,
		  u32 *rule_locs)
{
	const struct dms_port *port = netdev_priv(netdev);
	const struct dms_steering *steering = dms_steering_get(port);

	switch (nfc->cmd) {
	case ETHTOOL_GRXCLSRLCNT:
		nfc->rule_cnt = steering->n_rules;
		nfc->data = dms_rules | RX_CLS_LOC_SPECIAL;
		return 0;
	case ETHTOOL_GRXCLSRULE:
		return dms_get_rule(steering, nfc);
	case ETHTOOL_GRXCLSRLALL:
		return dms_get_rule_locs(steering, nfc, rule_locs);
	default:
		return -EOPNOTSUPP;
	}
}

int dms_set_rxnfc(struct net_device *netdev, struct ethtool_rxnfc *nfc)
{
	struct dms_port *port = netdev_priv(netdev);

	switch (nfc->cmd) {
	case ETHTOOL_SRXCLSRLINS:
		return dms_rule_insert(port, nfc);
	case ETHTOOL_SRXCLSRLDEL:
		return dms_rule_delete(port, nfc->fs.location);
	default:
		return -EOPNOTSUPP;
	}
}
