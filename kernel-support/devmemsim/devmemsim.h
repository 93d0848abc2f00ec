/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * devmemsim - a software NIC whose Rx queues take device memory
 *
 * Two net devices, joined back to back. Where a NIC would DMA, this driver
 * copies; everything else is done as a NIC driver does it.
 */
#ifndef DEVMEMSIM_H
#define DEVMEMSIM_H

#include <linux/ethtool.h>
#include <linux/hrtimer.h>
#include <linux/irq_work.h>
#include <linux/ktime.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/u64_stats_sync.h>
#include <net/netdev_queues.h>
#include <net/netmem.h>
#include <net/xdp.h>

#define DMS_NAME		"devmemsim"

#define DMS_MAX_CHANNELS	16
#define DMS_DEF_CHANNELS	4

/* A large packet takes up to MAX_SKB_FRAGS buffers, it must fit */
#define DMS_MIN_RX_PENDING	32
#define DMS_DEF_RX_PENDING	128
#define DMS_MAX_RX_PENDING	4096
#define DMS_MIN_TX_PENDING	32
#define DMS_DEF_TX_PENDING	256
#define DMS_MAX_TX_PENDING	4096

#define DMS_MAX_RX_PAGE_SIZE	SZ_64K
#define DMS_HDS_THRESH_MAX	1024
#define DMS_RX_COPYBREAK_MAX	1024
#define DMS_MAX_MTU		9000

/* Entries of an indirection table: at least so many per queue in use */
#define DMS_INDIR_PER_QUEUE	32
#define DMS_MIN_INDIR_SIZE	128
#define DMS_MAX_INDIR_SIZE	(DMS_INDIR_PER_QUEUE * DMS_MAX_CHANNELS)
/* Has to reach over all hash fields of an IPv6 frame, flow label included */
#define DMS_KEY_SIZE		52
/* RSS contexts, the default one included */
#define DMS_MAX_RSS		16
#define DMS_MAX_RULES		2048

struct bpf_prog;
struct dms_faults;
struct dms_gro;
struct dms_port;
struct irq_domain;
struct page_pool;

/**
 * struct dms_rx_ring - the memory of an Rx queue
 * @pool:	where buffers come from, possibly from a memory provider
 * @bufs:	buffers posted to the device, in order
 * @size:	number of slots in @bufs
 * @head:	slot of the buffer to fill next
 * @count:	number of posted buffers, from @head on
 * @buf_size:	bytes per buffer
 *
 * This is what struct netdev_queue_mgmt_ops calls the per-queue memory.
 */
struct dms_rx_ring {
	struct page_pool *pool;
	netmem_ref *bufs;
	u32 size;
	u32 head;
	u32 count;
	u32 buf_size;
	netmem_ref spare_half;		/* see dms_fault_take_half() */
};

struct dms_rx_stats {
	u64_stats_t packets;
	u64_stats_t bytes;
	u64_stats_t alloc_fail;
	u64_stats_t drops;
	u64_stats_t overruns;
	u64_stats_t gro_packets;
	u64_stats_t gro_bytes;
	u64_stats_t gro_wire_packets;
	u64_stats_t gro_wire_bytes;
	u64_stats_t xdp[XDP_REDIRECT + 1];	/* by enum xdp_action */
	struct u64_stats_sync syncp;
};

struct dms_tx_stats {
	u64_stats_t packets;
	u64_stats_t bytes;
	u64_stats_t drops;
	u64_stats_t stop;
	u64_stats_t gso_packets;
	u64_stats_t gso_bytes;
	u64_stats_t gso_wire_packets;
	u64_stats_t gso_wire_bytes;
	struct u64_stats_sync syncp;
};

/**
 * struct dms_xdp_tx - packets that XDP sends, past the Tx queue
 * @lock:	serializes senders: this channel's NAPI, and any that redirects
 * @in_flight:	packets sent and not completed
 * @packets:	packets sent
 * @bytes:	their bytes
 * @drops:	packets that found no room or no way
 * @syncp:	for readers of the counters
 */
struct dms_xdp_tx {
	spinlock_t lock;	/* serializes senders */
	atomic_t in_flight;
	u64_stats_t packets;
	u64_stats_t bytes;
	u64_stats_t drops;
	struct u64_stats_sync syncp;
};

/**
 * struct dms_channel - an Rx queue, a Tx queue and the NAPI instance they share
 * @port:	device this channel belongs to
 * @idx:	queue index
 * @napi:	NAPI instance, lives as long as @ring has memory
 * @rx_timer:	raises the interrupt when frames have waited long enough
 * @irq:	number of the interrupt
 * @irq_cpu:	CPU that it fires on
 * @irq_armed:	the next frame raises it
 * @irq_called:	it is on its way to another CPU
 * @irq_work:	fires it on this CPU
 * @irq_csd:	fires it on another CPU
 * @irq_name:	as in /proc/interrupts
 * @wire:	frames that the peer sent and NAPI did not pick up yet
 * @backlog:	frames that NAPI picked up, NAPI context only
 * @gro:	what merges them, NAPI context only
 * @ring:	Rx buffers, NAPI context while the queue runs
 * @rx_stats:	written in NAPI context only
 * @xdp_rxq:	this queue as XDP programs see it, has the pool of @ring while
 *		the queue runs
 * @xdp_redirected: this poll has redirected packets, NAPI context only
 * @xdp_tx:	packets that XDP sends
 * @done_lock:	serializes completions of the Tx queue, they come from the
 *		peer's NAPI instances
 * @in_flight:	frames sent and not completed
 * @tx_stats:	written under the Tx queue lock
 */
struct dms_channel {
	struct dms_port *port;
	unsigned int idx;

	struct napi_struct napi;
	struct hrtimer rx_timer;

	unsigned int irq;
	unsigned int irq_cpu;
	bool irq_armed;
	bool irq_called;
	struct irq_work irq_work;
	call_single_data_t irq_csd;
	char irq_name[IFNAMSIZ + 12];

	struct sk_buff_head wire;
	struct sk_buff_head backlog;
	struct dms_gro *gro;
	struct dms_rx_ring ring;
	struct dms_rx_stats rx_stats;

	struct xdp_rxq_info xdp_rxq;
	bool xdp_redirected;
	struct dms_xdp_tx xdp_tx;

	spinlock_t done_lock;	/* serializes Tx completions */
	atomic_t in_flight;
	struct dms_tx_stats tx_stats;
};

enum dms_csum {
	DMS_CSUM_NONE,		/* there is none, or none that is known here */
	DMS_CSUM_PARTIAL,	/* left to the device */
	DMS_CSUM_GOOD,
	DMS_CSUM_BAD,
};

/* What the parser found out about a frame, kept in skb->cb while the frame
 * is on the wire.
 */
struct dms_frame_cb {
	ktime_t due;		/* when a fault lets go of it */
	u32 hash;
	u32 len;		/* as accounted when sent */
	u16 header_len;		/* end of the TCP header, 0 if not TCP */
	u16 repeat_len;		/* headers that all packets of a large one have */
	u8 hash_type;		/* enum pkt_hash_types */
	u8 csum;		/* enum dms_csum */
	bool released;		/* a fault has held it already */
	bool sent;		/* the sender need not hear of it again */
	bool xdp;		/* sent by XDP, no Tx queue waits for it */
};

#define DMS_FRAME_CB(skb)	((struct dms_frame_cb *)(skb)->cb)

/* Packets that a frame is on a real wire */
static inline unsigned int dms_wire_packets(const struct sk_buff *frame)
{
	unsigned int repeat_len = DMS_FRAME_CB(frame)->repeat_len;

	if (!skb_is_gso(frame))
		return 1;

	return max(DIV_ROUND_UP(frame->len - repeat_len,
				skb_shinfo(frame)->gso_size), 1);
}

static inline unsigned int dms_wire_bytes(const struct sk_buff *frame)
{
	return frame->len + (dms_wire_packets(frame) - 1) *
			    DMS_FRAME_CB(frame)->repeat_len;
}

typedef void (*dms_receive_t)(struct dms_channel *ch, struct sk_buff *frame,
			      int budget);

/**
 * struct dms_link - the cable between two ports
 * @lock:	serializes link changes
 * @port:	the two ends
 */
struct dms_link {
	spinlock_t lock;	/* serializes link changes */
	struct dms_port *port[2];
};

/**
 * struct dms_port - private part of a net device
 * @netdev:	the net device
 * @link:	cable that @netdev is plugged into
 * @peer:	other end of @link
 * @up:		device is open and takes frames from the peer
 * @hds:	split headers from TCP payload
 * @xdp_prog:	XDP program, instance lock
 * @hds_thresh:	only split frames longer than this
 * @rx_copybreak: copy frames up to this length to memory of the host
 * @receive:	what NAPI does with a frame, dms_receive() or a fault
 * @steering:	how frames are spread over queues, replaced as a whole
 * @rx_usecs:	time that a frame waits for others
 * @rx_pending:	frames that an Rx ring has buffers for
 * @tx_pending:	frames that a Tx queue keeps in flight
 * @faults:	fault injection, see devmemsim_fault.h
 * @irq_domain:	interrupts, those of channels that are not in use too
 * @channels:	queues, the first netdev->real_num_rx_queues are in use
 */
struct dms_port {
	struct net_device *netdev;
	struct dms_link *link;
	struct dms_port *peer;
	bool up;
	bool hds;
	u32 hds_thresh;
	u32 rx_copybreak;
	u32 rx_usecs;
	struct bpf_prog __rcu *xdp_prog;
	dms_receive_t receive;
	struct dms_steering __rcu *steering;
	u32 rx_pending;
	u32 tx_pending;
	struct dms_faults *faults;
	struct irq_domain *irq_domain;
	struct dms_channel channels[DMS_MAX_CHANNELS];
};

/* Are the headers of a frame split from its payload? */
static inline bool dms_rx_splits(const struct dms_port *port,
				 const struct sk_buff *frame)
{
	return DMS_FRAME_CB(frame)->header_len && READ_ONCE(port->hds) &&
	       frame->len > READ_ONCE(port->hds_thresh) &&
	       frame->len > READ_ONCE(port->rx_copybreak);
}

/* In layers: a file calls those above it here, and none below it. */

/* devmemsim_dma.c */
int dms_dma_check(struct device *dev);
bool dms_dma_reachable(netmem_ref netmem, size_t len);
int dms_dma_read(const struct sk_buff *frame, unsigned int offset,
		 void *dst, unsigned int len);
int dms_dma_write(netmem_ref netmem, unsigned int netmem_offset,
		  const struct sk_buff *frame, unsigned int offset,
		  unsigned int len);
__wsum dms_dma_sum(const struct sk_buff *frame, unsigned int offset,
		   unsigned int len);

/* devmemsim_csum.c */
enum dms_csum dms_csum_check(const struct sk_buff *frame);
bool dms_csum_fill(const struct sk_buff *frame, void *hdr, unsigned int len);

/* devmemsim_stats.c */
void dms_rx_count(struct dms_channel *ch, const struct sk_buff *frame);
void dms_rx_count_alloc_fail(struct dms_channel *ch);
void dms_rx_count_drop(struct dms_channel *ch);
void dms_rx_count_overrun(struct dms_channel *ch);
extern const struct netdev_stat_ops dms_stat_ops;
void dms_get_stats64(struct net_device *netdev,
		     struct rtnl_link_stats64 *stats);
int dms_get_sset_count(struct net_device *netdev, int sset);
void dms_get_strings(struct net_device *netdev, u32 sset, u8 *data);
void dms_get_ethtool_stats(struct net_device *netdev,
			   struct ethtool_stats *stats, u64 *data);

/* devmemsim_irq.c */
void dms_irq_init(struct dms_channel *ch);
int dms_irqs_alloc(struct dms_port *port, unsigned int id);
void dms_irqs_free(struct dms_port *port);
int dms_irq_request(struct dms_channel *ch);
void dms_irq_release(struct dms_channel *ch);
void dms_irq_raise(struct dms_channel *ch);
void dms_irq_delay(struct dms_channel *ch, u32 usecs);
void dms_irq_arm(struct dms_channel *ch);

/* devmemsim_tx.c */
netdev_tx_t dms_start_xmit(struct sk_buff *skb, struct net_device *netdev);
struct dms_channel *dms_tx_route(struct dms_port *peer, struct sk_buff *frame);
void dms_tx_wire(struct dms_channel *to, struct sk_buff *frame);
void dms_tx_complete(struct sk_buff *frame, int budget);
void dms_tx_drop(struct sk_buff *frame);
unsigned int dms_tx_in_flight(const struct dms_port *port);

/* devmemsim_queue.c */
extern const struct netdev_queue_mgmt_ops dms_queue_mgmt_ops;
int dms_ring_alloc(struct dms_port *port, struct dms_rx_ring *ring,
		   struct netdev_queue_config *qcfg, unsigned int idx);
void dms_ring_free(struct dms_rx_ring *ring);
int dms_ring_fill(struct net_device *netdev, struct dms_rx_ring *ring,
		  gfp_t gfp);
int dms_rings_reshape(struct dms_port *port, u32 rx_pending, u32 mtu);
netmem_ref dms_ring_take(struct dms_rx_ring *ring);
void dms_queue_enable(struct dms_channel *ch);
void dms_queue_disable(struct dms_channel *ch);
void dms_queue_purge(struct dms_channel *ch);

/* devmemsim_gro.c */
int dms_gro_alloc(struct dms_channel *ch);
void dms_gro_free(struct dms_channel *ch);
void dms_gro_receive(struct dms_channel *ch, struct sk_buff_head *frames,
		     int budget);
void dms_gro_set_inner(const struct sk_buff *frame, struct sk_buff *skb);

/* devmemsim_xdp.c */
bool dms_xdp_mtu_fits(const struct dms_port *port, int mtu);
void dms_xdp_frame(struct dms_channel *ch, const struct bpf_prog *prog,
		   const struct sk_buff *frame);
void dms_xdp_flush(struct dms_channel *ch);
int dms_xdp_xmit(struct net_device *netdev, int n, struct xdp_frame **frames,
		 u32 flags);
void dms_hds_update(struct dms_port *port, u8 hds_config);
int dms_bpf(struct net_device *netdev, struct netdev_bpf *bpf);

/* devmemsim_rx.c */
int dms_poll(struct napi_struct *napi, int budget);
void dms_receive(struct dms_channel *ch, struct sk_buff *frame, int budget);
void dms_rx_frame(struct dms_channel *ch, const struct sk_buff *frame);
struct sk_buff *dms_rx_build(struct dms_channel *ch,
			     const struct sk_buff *frame);
struct sk_buff *dms_rx_build_head(struct dms_channel *ch,
				  const struct sk_buff *frame,
				  unsigned int len);
struct sk_buff *dms_rx_build_host(struct dms_channel *ch,
				  const struct sk_buff *frame,
				  unsigned int linear_len);
int dms_rx_attach(struct dms_channel *ch, const struct sk_buff *frame,
		  struct sk_buff *skb, unsigned int pad);
void dms_rx_deliver(struct dms_channel *ch, const struct sk_buff *frame,
		    struct sk_buff *skb);

/* devmemsim_channel.c */
void dms_channel_init(struct dms_port *port, unsigned int idx);
int dms_channels_alloc(struct dms_port *port, unsigned int from,
		       unsigned int to);
void dms_channel_free(struct dms_port *port, unsigned int idx);
void dms_channel_start(struct dms_port *port, unsigned int idx);
void dms_channel_stop(struct dms_port *port, unsigned int idx);
int dms_set_channels(struct dms_port *port, unsigned int count);

/* devmemsim_ethtool.c */
extern const struct ethtool_ops dms_ethtool_ops;

/* devmemsim_netdev.c */
struct net_device *dms_netdev_alloc(struct device *parent,
				    struct dms_link *link, unsigned int id);
void dms_netdev_free(struct net_device *netdev);

/* devmemsim_debugfs.c */
void dms_debugfs_add(struct dms_port *port);
void dms_debugfs_del(struct dms_port *port);
void dms_debugfs_init(void);
void dms_debugfs_exit(void);

#endif
