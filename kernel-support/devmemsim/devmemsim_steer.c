// SPDX-License-Identifier: GPL-2.0-only
/*
 * Steering: which queue does a frame belong to? The lookup has no side effects.
 * Control changes a copy of the table and publishes that, under the instance
 * lock.
 */
#include <linux/bitops.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>
#include <linux/tcp.h>
#include <linux/unaligned.h>
#include <net/flow_dissector.h>
#include <net/netdev_lock.h>

#include "devmemsim_steer.h"

/* src and dst address, src and dst port, flow label */
#define DMS_HASH_INPUT_MAX	(2 * sizeof(struct in6_addr) + \
				 2 * sizeof(u16) + sizeof(u32))

unsigned int dms_rules = 64;
module_param_named(rules, dms_rules, uint, 0444);
MODULE_PARM_DESC(rules,
		 "Number of ntuple rules that a device has room for (default: 64, at most 2048)");

static unsigned int dms_tcp_end(const struct sk_buff *frame, unsigned int off)
{
	const struct tcphdr *th;
	struct tcphdr buf;
	unsigned int end;

	th = skb_header_pointer(frame, off, sizeof(buf), &buf);
	if (!th || th->doff < sizeof(buf) / 4)
		return 0;

	end = off + th->doff * 4;
	return end <= frame->len ? end : 0;
}

/* Return: the end of the TCP header, or 0 if there is none */
unsigned int dms_flow_parse(const struct sk_buff *frame, struct dms_flow *flow)
{
	struct flow_keys keys;

	memset(flow, 0, sizeof(*flow));
	if (!skb_flow_dissect_flow_keys(frame, &keys,
					FLOW_DISSECTOR_F_STOP_AT_ENCAP))
		return 0;

	switch (keys.control.addr_type) {
	case FLOW_DISSECTOR_KEY_IPV4_ADDRS:
		flow->ip_version = 4;
		flow->src[0] = keys.addrs.v4addrs.src;
		flow->dst[0] = keys.addrs.v4addrs.dst;
		break;
	case FLOW_DISSECTOR_KEY_IPV6_ADDRS:
		flow->ip_version = 6;
		memcpy(flow->src, &keys.addrs.v6addrs.src, sizeof(flow->src));
		memcpy(flow->dst, &keys.addrs.v6addrs.dst, sizeof(flow->dst));
		flow->label = htonl(keys.tags.flow_label);
		break;
	default:
		return 0;
	}

	flow->proto = keys.basic.ip_proto;
	if (keys.control.flags & FLOW_DIS_IS_FRAGMENT)
		return 0;

	flow->sport = keys.ports.src;
	flow->dport = keys.ports.dst;
	if (flow->proto != IPPROTO_TCP)
		return 0;

	return dms_tcp_end(frame, keys.control.thoff);
}

/* Fragments have no ports, so they are hashed as IP is. The first of them too:
 * all must find the same queue.
 */
static u32 dms_flow_fields(const struct dms_flow *flow,
			   const struct dms_rss *rss)
{
	bool v6 = flow->ip_version == 6;

	if (flow->sport || flow->dport) {
		if (flow->proto == IPPROTO_TCP)
			return rss->fields[v6 ? DMS_HASH_TCPV6 : DMS_HASH_TCPV4];
		if (flow->proto == IPPROTO_UDP)
			return rss->fields[v6 ? DMS_HASH_UDPV6 : DMS_HASH_UDPV4];
	}

	return rss->fields[v6 ? DMS_HASH_IPV6 : DMS_HASH_IPV4];
}

/* Make source and destination the same for both directions of a connection */
static void dms_flow_symmetric(struct dms_flow *flow, u8 xfrm)
{
	bool or = xfrm & RXH_XFRM_SYM_OR_XOR;
	__be16 port = flow->sport ^ flow->dport;
	__be32 addr;
	int i;

	flow->sport = or ? flow->sport | flow->dport : port;
	flow->dport = port;
	for (i = 0; i < ARRAY_SIZE(flow->src); i++) {
		addr = flow->src[i] ^ flow->dst[i];
		flow->src[i] = or ? flow->src[i] | flow->dst[i] : addr;
		flow->dst[i] = addr;
	}
}

static unsigned int dms_hash_input(const struct dms_flow *flow, u32 fields,
				   u8 *input)
{
	unsigned int size = flow->ip_version == 4 ? 4 : 16;
	const struct {
		u32 field;
		const void *from;
		unsigned int size;
	} part[] = {
		{ RXH_IP_SRC,	flow->src,	size },
		{ RXH_IP_DST,	flow->dst,	size },
		{ RXH_L4_B_0_1,	&flow->sport,	sizeof(flow->sport) },
		{ RXH_L4_B_2_3,	&flow->dport,	sizeof(flow->dport) },
		{ RXH_IP6_FL,	&flow->label,	sizeof(flow->label) },
	};
	unsigned int i, len = 0;

	for (i = 0; i < ARRAY_SIZE(part); i++) {
		if (!(fields & part[i].field))
			continue;
		memcpy(input + len, part[i].from, part[i].size);
		len += part[i].size;
	}

	return len;
}

/* Toeplitz: for each bit set in the input, add the 32 bits of the key that
 * start at the same position.
 */
static u32 dms_toeplitz(const u8 *input, unsigned int len, const u8 *key)
{
	unsigned int i;
	u32 hash = 0;
	u64 window;
	int bit;

	window = get_unaligned_be32(key);
	for (i = 0; i < len; i++) {
		window = window << 8 | key[i + sizeof(u32)];
		for (bit = 7; bit >= 0; bit--)
			if (input[i] & BIT(bit))
				hash ^= (u32)(window >> (bit + 1));
	}

	return hash;
}

static void dms_flow_hash(const struct dms_flow *flow,
			  const struct dms_rss *rss, struct dms_frame_cb *cb)
{
	u8 input[DMS_HASH_INPUT_MAX];
	struct dms_flow sym;
	unsigned int len;
	u32 fields;

	BUILD_BUG_ON(sizeof(input) + sizeof(u32) > DMS_KEY_SIZE);

	cb->hash = 0;
	cb->hash_type = PKT_HASH_TYPE_NONE;
	fields = flow->ip_version ? dms_flow_fields(flow, rss) : 0;
	if (!fields)
		return;

	if (rss->xfrm) {
		sym = *flow;
		dms_flow_symmetric(&sym, rss->xfrm);
		flow = &sym;
	}

	len = dms_hash_input(flow, fields, input);
	cb->hash = dms_toeplitz(input, len, rss->key);
	cb->hash_type = fields & (RXH_L4_B_0_1 | RXH_L4_B_2_3) ?
			PKT_HASH_TYPE_L4 : PKT_HASH_TYPE_L3;
}

static bool dms_rule_match(const struct dms_rule *rule,
			   const struct dms_flow *flow)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(flow->word); i++)
		if ((flow->word[i] & rule->mask.word[i]) != rule->value.word[i])
			return false;

	return true;
}

static const struct dms_rule *
dms_rule_find(const struct dms_steering *steering, const struct dms_flow *flow)
{
	unsigned int i;

	if (!steering->n_rules)
		return NULL;

	for_each_set_bit(i, steering->used, dms_rules)
		if (dms_rule_match(&steering->rule[i], flow))
			return &steering->rule[i];

	return NULL;
}

static unsigned int dms_rss_queue(const struct dms_rss *rss, u32 hash)
{
	return rss->indir[hash % DMS_MAX_INDIR_SIZE];
}

/* An ntuple rule, then an RSS context if the rule names one, else RSS.
 * Return: queue, or a negative error if it is not in use.
 */
int dms_steer(const struct dms_steering *steering,
	      const struct dms_flow *flow, struct dms_frame_cb *cb)
{
	const struct dms_rss *rss = &steering->rss[0];
	const struct dms_rule *rule;
	unsigned int queue;

	rule = dms_rule_find(steering, flow);
	if (rule && rule->spread)
		rss = &steering->rss[rule->rss];

	dms_flow_hash(flow, rss, cb);

	queue = rule && !rule->spread ? 0 : dms_rss_queue(rss, cb->hash);
	if (rule)
		queue += rule->queue;

	return queue < steering->n_queues ? queue : -ENOENT;
}

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

static unsigned int dms_rss_max(const struct dms_rss *rss)
{
	unsigned int i, max_queue = 0;

	for (i = 0; i < ARRAY_SIZE(rss->indir); i++)
		max_queue = max(max_queue, rss->indir[i]);

	return max_queue;
}

/* A rule adds to what the table of its context gives. The core does not know
 * that there is something to add.
 */
bool dms_rule_fits(const struct dms_steering *steering,
		   const struct dms_rule *rule)
{
	unsigned int max_queue = rule->queue;

	if (rule->spread)
		max_queue += dms_rss_max(&steering->rss[rule->rss]);

	return max_queue < steering->n_queues;
}

/* Before tables or the number of queues change, to @steering */
static int dms_rules_check(const struct dms_steering *steering,
			   struct netlink_ext_ack *extack)
{
	unsigned int loc;

	for_each_set_bit(loc, steering->used, dms_rules)
		if (!dms_rule_fits(steering, &steering->rule[loc])) {
			NL_SET_ERR_MSG_FMT_MOD(extack,
					       "ntuple rule %u leads to a queue beyond the new count",
					       loc);
			return -EINVAL;
		}

	return 0;
}

/* Publish it if its rules allow, and free it if not. */
int dms_steering_try(struct dms_port *port, struct dms_steering *steering,
		     struct netlink_ext_ack *extack)
{
	int err;

	err = dms_rules_check(steering, extack);
	if (err) {
		kvfree(steering);
		return err;
	}

	dms_steering_publish(port, steering);
	return 0;
}
