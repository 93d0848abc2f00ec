// SPDX-License-Identifier: GPL-2.0-only
/*
 * Hardware GRO: the headers of a frame, as far as merging depends on them.
 */
#include <linux/etherdevice.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/jhash.h>
#include <linux/skbuff.h>
#include <linux/tcp.h>
#include <net/checksum.h>
#include <net/ip.h>
#include <net/ip6_checksum.h>
#include <net/ipv6.h>
#include <net/tcp.h>

#include "devmemsim.h"
#include "devmemsim_gro.h"

#define DMS_GRO_LAST_FLAGS	(TCP_FLAG_FIN | TCP_FLAG_PSH)
#define DMS_GRO_ALONE_FLAGS	(TCP_FLAG_SYN | TCP_FLAG_RST | TCP_FLAG_URG)

static void dms_gro_add_ip(struct dms_gro_hdr *hdr, unsigned int off,
			   unsigned int version, u16 id)
{
	struct dms_gro_ip *ip = &hdr->ip[hdr->n_ip++];

	ip->off = off;
	ip->version = version;
	ip->id = id;
}

/* A packet ends where its header says. Only the outer one can have padding. */
static bool dms_gro_set_end(struct dms_gro_hdr *hdr, unsigned int end)
{
	if (hdr->n_ip ? end != hdr->end : end > hdr->frame_len)
		return false;

	hdr->end = end;
	return true;
}

/* Return: protocol of what follows at &hdr->len, IPPROTO_RAW if it is not for
 * us to know, IPPROTO_FRAGMENT if there is only part of it
 */
static u8 dms_gro_parse_ip4(struct dms_gro_hdr *hdr)
{
	struct iphdr *iph = (struct iphdr *)(hdr->data + hdr->len);
	unsigned int off = hdr->len;

	if (off + sizeof(*iph) > hdr->size)
		return IPPROTO_FRAGMENT;
	if (iph->version != 4 || iph->ihl < 5)
		return IPPROTO_RAW;
	if (ip_is_fragment(iph))
		return IPPROTO_FRAGMENT;

	if (iph->ihl > 5 || ip_fast_csum(iph, 5) ||
	    !dms_gro_set_end(hdr, off + ntohs(iph->tot_len)))
		hdr->odd = true;

	hdr->hash = jhash_3words((__force u32)iph->saddr,
				 (__force u32)iph->daddr, 0, hdr->hash);
	dms_gro_add_ip(hdr, off, 4, ntohs(iph->id));
	hdr->len += iph->ihl * 4;

	iph->tot_len = 0;
	iph->id = 0;
	iph->check = 0;
	return iph->protocol;
}

static u8 dms_gro_parse_ip6(struct dms_gro_hdr *hdr)
{
	struct ipv6hdr *iph = (struct ipv6hdr *)(hdr->data + hdr->len);
	const struct ipv6_opt_hdr *opt;
	unsigned int off = hdr->len;
	u8 proto;

	if (off + sizeof(*iph) > hdr->size)
		return IPPROTO_FRAGMENT;
	if (iph->version != 6)
		return IPPROTO_RAW;

	if (!dms_gro_set_end(hdr,
			     off + sizeof(*iph) + ntohs(iph->payload_len)))
		hdr->odd = true;

	hdr->hash = jhash2((u32 *)&iph->saddr, 8, hdr->hash);
	dms_gro_add_ip(hdr, off, 6, 0);
	hdr->len += sizeof(*iph);
	iph->payload_len = 0;

	proto = iph->nexthdr;
	while (proto == IPPROTO_HOPOPTS || proto == IPPROTO_DSTOPTS) {
		opt = (struct ipv6_opt_hdr *)(hdr->data + hdr->len);
		if (hdr->len + sizeof(*opt) > hdr->size)
			return IPPROTO_FRAGMENT;

		hdr->len += ipv6_optlen(opt);
		proto = opt->nexthdr;
	}

	return proto;
}

static enum dms_gro_kind dms_gro_parse_tcp(struct dms_gro_hdr *hdr)
{
	struct tcphdr *th = (struct tcphdr *)(hdr->data + hdr->len);
	__be32 flags;

	if (hdr->len + sizeof(*th) > hdr->size)
		return DMS_GRO_FRAGMENT;
	if (th->doff < sizeof(*th) / 4)
		return DMS_GRO_OTHER;

	hdr->th_off = hdr->len;
	hdr->len += th->doff * 4;
	hdr->hash = jhash_1word(*(__force u32 *)&th->source, hdr->hash);
	hdr->seq = ntohl(th->seq);

	flags = tcp_flag_word(th);
	hdr->last_flags = flags & DMS_GRO_LAST_FLAGS;
	if (hdr->odd || hdr->len > hdr->size || hdr->len >= hdr->end ||
	    flags & DMS_GRO_ALONE_FLAGS)
		return DMS_GRO_TCP;

	tcp_flag_word(th) = flags & ~DMS_GRO_LAST_FLAGS;
	th->seq = 0;
	th->check = 0;
	return DMS_GRO_DATA;
}

enum dms_gro_kind dms_gro_parse(const struct sk_buff *frame,
				struct dms_gro_hdr *hdr)
{
	__be16 type;
	u8 proto;

	hdr->frame_len = frame->len;
	hdr->size = min(frame->len, DMS_GRO_HDR_MAX);
	hdr->end = 0;
	hdr->len = ETH_HLEN;
	hdr->n_ip = 0;
	hdr->hash = 0;
	hdr->odd = false;
	if (hdr->size < ETH_HLEN ||
	    dms_dma_read(frame, 0, hdr->data, hdr->size))
		return DMS_GRO_OTHER;

	type = ((struct ethhdr *)hdr->data)->h_proto;
	if (type == htons(ETH_P_IP))
		proto = IPPROTO_IPIP;
	else if (type == htons(ETH_P_IPV6))
		proto = IPPROTO_IPV6;
	else
		return DMS_GRO_OTHER;

	while (hdr->n_ip < DMS_GRO_MAX_IP) {
		if (proto == IPPROTO_IPIP)
			proto = dms_gro_parse_ip4(hdr);
		else if (proto == IPPROTO_IPV6)
			proto = dms_gro_parse_ip6(hdr);
		else
			break;
	}

	if (proto == IPPROTO_FRAGMENT)
		return DMS_GRO_FRAGMENT;

	return proto == IPPROTO_TCP ? dms_gro_parse_tcp(hdr) : DMS_GRO_OTHER;
}

/* The sum of the pseudo header, as a checksum field has it that is left to the
 * device
 */
__sum16 dms_gro_pseudo(const u8 *headers, const struct dms_gro_ip *ip,
		       unsigned int len)
{
	const struct iphdr *v4 = (const struct iphdr *)(headers + ip->off);
	const struct ipv6hdr *v6 = (const struct ipv6hdr *)(headers + ip->off);

	if (ip->version == 4)
		return ~csum_tcpudp_magic(v4->saddr, v4->daddr, len,
					  IPPROTO_TCP, 0);

	return ~csum_ipv6_magic(&v6->saddr, &v6->daddr, len, IPPROTO_TCP, 0);
}

/* Those of packets in a tunnel nobody has looked at yet */
bool dms_gro_csum_good(const struct sk_buff *frame,
		       const struct dms_gro_hdr *hdr)
{
	unsigned int len = hdr->end - hdr->th_off;
	__wsum sum;

	switch (DMS_FRAME_CB(frame)->csum) {
	case DMS_CSUM_PARTIAL:
		return skb_checksum_start_offset(frame) == hdr->th_off;
	case DMS_CSUM_GOOD:
		return true;
	case DMS_CSUM_BAD:
		return false;
	default:
		break;
	}

	sum = csum_unfold(dms_gro_pseudo(hdr->data, &hdr->ip[hdr->n_ip - 1],
					 len));
	return !csum_fold(csum_add(sum,
				   dms_dma_sum(frame, hdr->th_off, len)));
}
