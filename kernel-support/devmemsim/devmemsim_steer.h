/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef DEVMEMSIM_STEER_H
#define DEVMEMSIM_STEER_H

#include <linux/bitmap.h>
#include <linux/ethtool.h>
#include <linux/rcupdate.h>
#include <linux/skbuff.h>

#include "devmemsim.h"

/* ntuple rules that a device has room for, at most DMS_MAX_RULES */
extern unsigned int dms_rules;

/**
 * struct dms_flow - what the parser extracts from a frame
 * @src:	source address, IPv4 in the first word
 * @dst:	destination address, same
 * @sport:	source port, 0 if none
 * @dport:	destination port, 0 if none
 * @ip_version:	4, 6 or 0 for anything else
 * @proto:	IPPROTO_*
 * @word:	all of the above, for matching
 * @label:	IPv6 flow label, for hashing alone
 */
struct dms_flow {
	union {
		struct {
			__be32 src[4];
			__be32 dst[4];
			__be16 sport;
			__be16 dport;
			u8 ip_version;
			u8 proto;
			u16 reserved;
		};
		u32 word[10];
	};
	__be32 label;
};

/**
 * struct dms_rule - ntuple rule
 * @value:	flow to match, already masked
 * @mask:	bits of the flow to look at
 * @queue:	queue, or what is added to the queue that RSS finds
 * @rss:	RSS context to spread over
 * @spread:	use @rss
 * @fs:		rule as the user gave it
 */
struct dms_rule {
	struct dms_flow value;
	struct dms_flow mask;
	u32 queue;
	u32 rss;
	bool spread;
	struct ethtool_rx_flow_spec fs;
};

/* What the device can tell apart to choose the hash fields */
enum dms_hash_type {
	DMS_HASH_IPV4,
	DMS_HASH_IPV6,
	DMS_HASH_TCPV4,
	DMS_HASH_TCPV6,
	DMS_HASH_UDPV4,
	DMS_HASH_UDPV6,
	DMS_N_HASH_TYPES
};

/**
 * struct dms_rss - RSS context
 * @indir:	queues. A table of less entries is repeated until it fills this
 *		one, so that lookups do not depend on its size.
 * @key:	Toeplitz key
 * @fields:	what is hashed, RXH_*, by enum dms_hash_type
 * @xfrm:	what is done to it before, RXH_XFRM_*
 * @used:	the context exists
 */
struct dms_rss {
	u8 indir[DMS_MAX_INDIR_SIZE];
	u8 key[DMS_KEY_SIZE];
	u32 fields[DMS_N_HASH_TYPES];
	u8 xfrm;
	bool used;
};

/**
 * struct dms_steering - how a port spreads received frames over its queues
 * @rcu:	for kvfree_rcu()
 * @n_queues:	number of queues in use
 * @n_rules:	number of rules in use
 * @used:	locations of the rules in use
 * @rss:	RSS contexts, the default one first
 * @rule:	dms_rules of them, the match at the lowest location wins
 *
 * Never changed once published: readers are in the peer's xmit.
 */
struct dms_steering {
	struct rcu_head rcu;
	u32 n_queues;
	u32 n_rules;
	DECLARE_BITMAP(used, DMS_MAX_RULES);
	struct dms_rss rss[DMS_MAX_RSS];
	struct dms_rule rule[];
};

/* devmemsim_steer.c: lookup, and control under the instance lock */
unsigned int dms_flow_parse(const struct sk_buff *frame,
			    struct dms_flow *flow);
int dms_steer(const struct dms_steering *steering,
	      const struct dms_flow *flow, struct dms_frame_cb *cb);
const struct dms_steering *dms_steering_get(const struct dms_port *port);
struct dms_steering *dms_steering_clone(const struct dms_port *port);
void dms_steering_publish(struct dms_port *port, struct dms_steering *steering);
int dms_steering_try(struct dms_port *port, struct dms_steering *steering,
		     struct netlink_ext_ack *extack);
bool dms_rule_fits(const struct dms_steering *steering,
		   const struct dms_rule *rule);

/* devmemsim_rss.c: control, under the instance lock */
void dms_rss_init(struct dms_rss *rss, unsigned int n_queues);
void dms_rss_spread(struct dms_rss *rss, unsigned int n_queues);
int dms_rss_can_resize(const struct dms_port *port, unsigned int n_queues);
void dms_rss_resize(struct dms_port *port, unsigned int old_queues,
		    unsigned int n_queues);
u32 dms_get_rxfh_indir_size(struct net_device *netdev);
u32 dms_get_rxfh_key_size(struct net_device *netdev);
int dms_get_rxfh(struct net_device *netdev, struct ethtool_rxfh_param *rxfh);
int dms_set_rxfh(struct net_device *netdev, struct ethtool_rxfh_param *rxfh,
		 struct netlink_ext_ack *extack);
int dms_get_rxfh_fields(struct net_device *netdev,
			struct ethtool_rxfh_fields *fields);
int dms_set_rxfh_fields(struct net_device *netdev,
			const struct ethtool_rxfh_fields *fields,
			struct netlink_ext_ack *extack);
int dms_create_rxfh_context(struct net_device *netdev,
			    struct ethtool_rxfh_context *ctx,
			    const struct ethtool_rxfh_param *rxfh,
			    struct netlink_ext_ack *extack);
int dms_modify_rxfh_context(struct net_device *netdev,
			    struct ethtool_rxfh_context *ctx,
			    const struct ethtool_rxfh_param *rxfh,
			    struct netlink_ext_ack *extack);
int dms_remove_rxfh_context(struct net_device *netdev,
			    struct ethtool_rxfh_context *ctx, u32 rss_context,
			    struct netlink_ext_ack *extack);

/* devmemsim_rxnfc.c: same */
int dms_rules_flush(struct dms_port *port);
int dms_get_rxnfc(struct net_device *netdev, struct ethtool_rxnfc *nfc,
		  u32 *rule_locs);
int dms_set_rxnfc(struct net_device *netdev, struct ethtool_rxnfc *nfc);

#endif
