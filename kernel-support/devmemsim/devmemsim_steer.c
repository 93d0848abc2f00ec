// SPDX-License-Identifier: GPL-2.0-only
/*
 * Steering: which queue does a frame belong to? Lookup only; the tables are
 * changed in devmemsim_rss.c and devmemsim_rxnfc.c.
 */
#include <linux/bitops.h>
#include <linux/etherdevice.h>
#include <linux/tcp.h>
#include <linux/unaligned.h>
#include <net/flow_dissector.h>

#include "devmemsim_steer.h"

/* src and dst address, src and dst port */
#define DMS_HASH_INPUT_MAX	(2 * sizeof(struct in6_addr) + 2 * sizeof(u16))

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

static bool dms_flow_has_ports(const struct dms_flow *flow)
{
	return (flow->proto == IPPROTO_TCP || flow->proto == IPPROTO_UDP) &&
	       (flow->sport || flow->dport);
}

enum pkt_hash_types dms_flow_hash_type(const struct dms_flow *flow)
{
	if (!flow->ip_version)
		return PKT_HASH_TYPE_NONE;

	return dms_flow_has_ports(flow) ? PKT_HASH_TYPE_L4 : PKT_HASH_TYPE_L3;
}

static unsigned int dms_hash_input(const struct dms_flow *flow, u8 *input)
{
	unsigned int size = flow->ip_version == 4 ? 4 : 16;
	unsigned int len = 2 * size;

	memcpy(input, flow->src, size);
	memcpy(input + size, flow->dst, size);
	if (dms_flow_has_ports(flow)) {
		memcpy(input + len, &flow->sport, sizeof(flow->sport));
		memcpy(input + len + 2, &flow->dport, sizeof(flow->dport));
		len += 4;
	}

	return len;
}

/* Toeplitz: for each bit set in the input, add the 32 bits of the key that
 * start at the same position.
 */
u32 dms_flow_hash(const struct dms_flow *flow, const u8 *key)
{
	u8 input[DMS_HASH_INPUT_MAX];
	unsigned int len, i;
	u32 hash = 0;
	u64 window;
	int bit;

	BUILD_BUG_ON(sizeof(input) + sizeof(u32) > DMS_KEY_SIZE);

	if (!flow->ip_version)
		return 0;

	len = dms_hash_input(flow, input);
	window = get_unaligned_be32(key);
	for (i = 0; i < len; i++) {
		window = window << 8 | key[i + sizeof(u32)];
		for (bit = 7; bit >= 0; bit--)
			if (input[i] & BIT(bit))
				hash ^= (u32)(window >> (bit + 1));
	}

	return hash;
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
	return rss->indir[hash % DMS_INDIR_SIZE];
}

/* An ntuple rule, then an RSS context if the rule names one, else RSS.
 * Return: queue, or a negative error if it is not in use.
 */
int dms_steer(const struct dms_steering *steering,
	      const struct dms_flow *flow, u32 *hash)
{
	const struct dms_rss *rss = &steering->rss[0];
	const struct dms_rule *rule;
	unsigned int queue;

	rule = dms_rule_find(steering, flow);
	if (rule && rule->spread)
		rss = &steering->rss[rule->rss];

	*hash = dms_flow_hash(flow, rss->key);

	queue = rule && !rule->spread ? 0 : dms_rss_queue(rss, *hash);
	if (rule)
		queue += rule->queue;

	return queue < steering->n_queues ? queue : -ENOENT;
}
