/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef DEVMEMSIM_GRO_H
#define DEVMEMSIM_GRO_H

#include <linux/skbuff.h>
#include <linux/types.h>

/* Longer headers than this are not looked at */
#define DMS_GRO_HDR_MAX		192

/* An IP header, and that of the packet in the tunnel */
#define DMS_GRO_MAX_IP		2

enum dms_gro_kind {
	DMS_GRO_OTHER,		/* nothing that TCP packets keep an order with */
	DMS_GRO_FRAGMENT,	/* or the rest is not known: of whatever flow */
	DMS_GRO_TCP,		/* has a flow, but is not merged */
	DMS_GRO_DATA,		/* may be merged */
};

struct dms_gro_ip {
	u16 off;
	u16 id;
	u8 version;
};

/**
 * struct dms_gro_hdr - headers of a frame
 * @data:	the headers, without what differs between segments of a packet
 * @size:	bytes that there are in @data
 * @frame_len:	end of the frame
 * @end:	end of the payload, what follows is padding
 * @len:	end of the headers
 * @th_off:	start of the TCP header
 * @ip:		IP headers, the outer one first
 * @n_ip:	number of @ip
 * @seq:	TCP sequence number
 * @last_flags:	those of FIN and PSH that are set
 * @hash:	of what makes a flow
 * @odd:	there is something that segments of a packet do not have
 */
struct dms_gro_hdr {
	u8 data[DMS_GRO_HDR_MAX] __aligned(4);
	unsigned int size;
	unsigned int frame_len;
	unsigned int end;
	unsigned int len;
	unsigned int th_off;
	struct dms_gro_ip ip[DMS_GRO_MAX_IP];
	unsigned int n_ip;
	u32 seq;
	__be32 last_flags;
	u32 hash;
	bool odd;
};

/* devmemsim_gro_parse.c */
enum dms_gro_kind dms_gro_parse(const struct sk_buff *frame,
				struct dms_gro_hdr *hdr);
bool dms_gro_csum_good(const struct sk_buff *frame,
		       const struct dms_gro_hdr *hdr);
__sum16 dms_gro_pseudo(const u8 *headers, const struct dms_gro_ip *ip,
		       unsigned int len);

#endif
