// SPDX-License-Identifier: GPL-2.0-only
/*
 * Checksums: what the stack left to the device is filled in, what it filled in
 * itself or passes on is checked.
 */
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/skbuff.h>
#include <linux/udp.h>
#include <net/checksum.h>
#include <net/flow_dissector.h>
#include <net/ip6_checksum.h>

#include "devmemsim.h"

/* Bytes from @thoff on that belong to the packet, a short frame is padded.
 * Return: 0 if the headers do not say.
 */
static unsigned int dms_l4_len(const struct sk_buff *frame,
			       const struct flow_keys *keys)
{
	unsigned int thoff = keys->control.thoff;
	unsigned int nhoff = skb_network_offset(frame);
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} buf;
	const struct ipv6hdr *ip6h;
	const struct iphdr *iph;
	unsigned int end;

	if (keys->control.addr_type == FLOW_DISSECTOR_KEY_IPV4_ADDRS) {
		iph = skb_header_pointer(frame, nhoff, sizeof(buf.v4), &buf);
		end = iph ? nhoff + ntohs(iph->tot_len) : 0;
	} else {
		ip6h = skb_header_pointer(frame, nhoff, sizeof(buf.v6), &buf);
		end = ip6h ? nhoff + sizeof(*ip6h) + ntohs(ip6h->payload_len) :
			     0;
	}

	return end > thoff && end <= frame->len ? end - thoff : 0;
}

static bool dms_udp_has_csum(const struct sk_buff *frame, unsigned int off)
{
	const struct udphdr *uh;
	struct udphdr buf;

	uh = skb_header_pointer(frame, off, sizeof(buf), &buf);
	return uh && uh->check;
}

static bool dms_csum_good(const struct sk_buff *frame,
			  const struct flow_keys *keys, unsigned int len)
{
	u8 proto = keys->basic.ip_proto;
	__wsum sum;

	sum = dms_dma_sum(frame, keys->control.thoff, len);
	if (keys->control.addr_type == FLOW_DISSECTOR_KEY_IPV4_ADDRS)
		return !csum_tcpudp_magic(keys->addrs.v4addrs.src,
					  keys->addrs.v4addrs.dst, len, proto,
					  sum);

	return !csum_ipv6_magic(&keys->addrs.v6addrs.src,
				&keys->addrs.v6addrs.dst, len, proto, sum);
}

/* What is known of the TCP or UDP checksum of a frame that is sent */
enum dms_csum dms_csum_check(const struct sk_buff *frame)
{
	struct flow_keys keys;
	unsigned int len;

	if (likely(frame->ip_summed == CHECKSUM_PARTIAL))
		return DMS_CSUM_PARTIAL;
	/* Its segments have been checked when they were put together */
	if (skb_is_gso(frame))
		return DMS_CSUM_GOOD;

	if (!skb_flow_dissect_flow_keys(frame, &keys,
					FLOW_DISSECTOR_F_STOP_AT_ENCAP))
		return DMS_CSUM_NONE;
	if (keys.control.flags & FLOW_DIS_IS_FRAGMENT)
		return DMS_CSUM_NONE;
	if (keys.control.addr_type != FLOW_DISSECTOR_KEY_IPV4_ADDRS &&
	    keys.control.addr_type != FLOW_DISSECTOR_KEY_IPV6_ADDRS)
		return DMS_CSUM_NONE;
	if (keys.basic.ip_proto != IPPROTO_TCP &&
	    !(keys.basic.ip_proto == IPPROTO_UDP &&
	      dms_udp_has_csum(frame, keys.control.thoff)))
		return DMS_CSUM_NONE;

	len = dms_l4_len(frame, &keys);
	if (!len)
		return DMS_CSUM_NONE;

	return dms_csum_good(frame, &keys, len) ? DMS_CSUM_GOOD : DMS_CSUM_BAD;
}

/* Fill in what the stack left to the device, in a copy of a frame whose first
 * @len bytes are at @hdr. The field has the sum of the pseudo header.
 * Return: false if the field is not in these.
 */
bool dms_csum_fill(const struct sk_buff *frame, void *hdr, unsigned int len)
{
	unsigned int start = skb_checksum_start_offset(frame);
	unsigned int pos = start + frame->csum_offset;
	__sum16 sum;

	if (pos + sizeof(sum) > len)
		return false;

	sum = csum_fold(dms_dma_sum(frame, start, frame->len - start));
	/* Zero says that there is none, in UDP */
	*(__sum16 *)(hdr + pos) = sum ?: CSUM_MANGLED_0;
	return true;
}
