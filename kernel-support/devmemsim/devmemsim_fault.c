// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fault injection, see README.md for what each fault does.
 *
 * Faults take the place of dms_receive() while any is set, so that the
 * ordinary path knows nothing of them. They only see TCP frames: what they are
 * for is the byte stream, and ARP would only make tests slow.
 */
#include <linux/ktime.h>
#include <linux/netdevice.h>
#include <linux/slab.h>
#include <net/page_pool/helpers.h>

#include "devmemsim.h"
#include "devmemsim_fault.h"

/* A frame that is late lets so many others pass, or waits so long if there
 * are none.
 */
#define DMS_LATE_FRAMES		3
#define DMS_LATE_TIME		(10 * NSEC_PER_MSEC)

static void dms_fault_count(struct dms_faults *faults, enum dms_fault fault)
{
	atomic_long_inc(&faults->injected[fault]);
}

/* Every Nth frame, N being the setting */
static bool dms_fault_hit(struct dms_faults *faults, enum dms_fault fault)
{
	u32 n = READ_ONCE(faults->value[fault]);

	if (!n || (u32)atomic_inc_return(&faults->seen[fault]) % n)
		return false;

	dms_fault_count(faults, fault);
	return true;
}

/* The first bytes of payload stay with the header. Neither GRO nor TCP may
 * turn them to a page fragment next to device memory, so the head must not be
 * a page fragment either. With all of the payload in the head there is no
 * device memory, hence nothing from the page pool.
 */
static struct sk_buff *dms_fault_build_linear(struct dms_channel *ch,
					      const struct sk_buff *frame,
					      unsigned int len)
{
	struct sk_buff *skb;

	if (len >= frame->len)
		return dms_rx_build_host(ch, frame, frame->len);

	skb = alloc_skb(NET_SKB_PAD + NET_IP_ALIGN + len,
			GFP_ATOMIC | __GFP_NOWARN);
	if (!skb) {
		dms_rx_count_alloc_fail(ch);
		return NULL;
	}

	skb_reserve(skb, NET_SKB_PAD + NET_IP_ALIGN);
	skb->dev = ch->port->netdev;
	if (dms_dma_read(frame, 0, skb_put(skb, len), len) ||
	    dms_rx_attach(ch, frame, skb, 0)) {
		dev_kfree_skb(skb);
		return NULL;
	}

	return skb;
}

/* The next half of a buffer that two halves share. One that follows the last one
 * waits until another was taken, so that no two in a row are neighbours.
 */
static netmem_ref dms_fault_take_half(struct dms_rx_ring *ring,
				      unsigned int *offset)
{
	netmem_ref half = ring->spare_half;

	if (half) {
		ring->spare_half = 0;
		*offset = ring->buf_size / 2;
		return half;
	}

	half = page_pool_alloc_frag_netmem(ring->pool, offset,
					   ring->buf_size / 2,
					   GFP_ATOMIC | __GFP_NOWARN);
	if (!half || !*offset)
		return half;

	ring->spare_half = half;
	return page_pool_alloc_frag_netmem(ring->pool, offset,
					   ring->buf_size / 2,
					   GFP_ATOMIC | __GFP_NOWARN);
}

static int dms_fault_pack(struct dms_channel *ch, const struct sk_buff *frame,
			  struct sk_buff *skb, bool halves)
{
	struct dms_rx_ring *ring = &ch->ring;
	unsigned int pos, len, offset;
	netmem_ref netmem;
	int i;

	skb_mark_for_recycle(skb);
	for (i = 0, pos = skb->len; pos < frame->len; i++, pos += len) {
		len = min(frame->len - pos, ring->buf_size / (1 + halves));
		if (halves)
			netmem = dms_fault_take_half(ring, &offset);
		else
			netmem = page_pool_alloc_frag_netmem(ring->pool,
							     &offset, len,
							     GFP_ATOMIC |
							     __GFP_NOWARN);
		if (!netmem) {
			dms_rx_count_alloc_fail(ch);
			return -ENOMEM;
		}

		skb_add_rx_frag_netmem(skb, i, netmem, offset, len, len);
		if (!dms_dma_reachable(netmem, ring->buf_size) ||
		    dms_dma_write(netmem, offset, frame, pos, len))
			return -EFAULT;
	}

	return 0;
}

/* Payload of several frames shares a buffer, as it does on devices with larger
 * buffers than frames, or that use a page twice.
 */
static struct sk_buff *dms_fault_build_packed(struct dms_channel *ch,
					      const struct sk_buff *frame,
					      bool halves)
{
	struct sk_buff *skb;

	skb = dms_rx_build_head(ch, frame, DMS_FRAME_CB(frame)->header_len);
	if (!skb)
		return NULL;

	if (dms_fault_pack(ch, frame, skb, halves)) {
		dev_kfree_skb(skb);
		return NULL;
	}

	return skb;
}

/* One bit of the payload is wrong, and the checksum tells. A large packet is
 * wrong as a whole: the stack gets it as one that was not put together.
 */
static struct sk_buff *dms_fault_build_corrupt(struct dms_channel *ch,
					       struct sk_buff *frame)
{
	unsigned int header_len = DMS_FRAME_CB(frame)->header_len;
	struct sk_buff *skb;
	u8 byte;

	skb = dms_rx_build_host(ch, frame, header_len);
	if (!skb)
		return NULL;

	if (frame->ip_summed == CHECKSUM_PARTIAL)
		dms_csum_fill(frame, skb->data, skb_headlen(skb));
	if (skb_copy_bits(skb, skb->len - 1, &byte, 1))
		goto err_free;
	byte ^= 1;
	if (skb_store_bits(skb, skb->len - 1, &byte, 1))
		goto err_free;

	DMS_FRAME_CB(frame)->csum = DMS_CSUM_BAD;
	return skb;

err_free:
	dev_kfree_skb(skb);
	return NULL;
}

static struct sk_buff *dms_fault_build(struct dms_channel *ch,
				       struct sk_buff *frame)
{
	unsigned int header_len = DMS_FRAME_CB(frame)->header_len;
	struct dms_faults *faults = ch->port->faults;
	u32 linear_bytes, pack;
	bool halves;

	if (header_len == frame->len)
		return dms_rx_build(ch, frame);

	if (dms_fault_hit(faults, DMS_FAULT_CORRUPT))
		return dms_fault_build_corrupt(ch, frame);

	if (dms_fault_hit(faults, DMS_FAULT_NO_SPLIT))
		return dms_rx_build_host(ch, frame, header_len);

	linear_bytes = READ_ONCE(faults->value[DMS_FAULT_LINEAR]);
	if (linear_bytes) {
		dms_fault_count(faults, DMS_FAULT_LINEAR);
		return dms_fault_build_linear(ch, frame,
					      header_len + linear_bytes);
	}

	pack = READ_ONCE(faults->value[DMS_FAULT_PACK]);
	halves = pack == DMS_PACK_HALVES;
	/* A large packet has room for so many whole buffers alone */
	if (pack && (!halves || (frame->len - header_len) * 2 <=
		     MAX_SKB_FRAGS * ch->ring.buf_size)) {
		dms_fault_count(faults, DMS_FAULT_PACK);
		return dms_fault_build_packed(ch, frame, halves);
	}

	return dms_rx_build(ch, frame);
}

static void dms_fault_deliver(struct dms_channel *ch, struct sk_buff *frame,
			      int budget)
{
	struct dms_faults *faults = ch->port->faults;
	struct sk_buff *skb;
	int copies = 1;

	if (dms_fault_hit(faults, DMS_FAULT_DUPLICATE))
		copies++;

	while (copies--) {
		/* A program's buffers are not for other faults to lay out */
		if (rcu_access_pointer(ch->port->xdp_prog)) {
			dms_rx_frame(ch, frame);
			continue;
		}

		skb = dms_fault_build(ch, frame);
		if (skb)
			dms_rx_deliver(ch, frame, skb);
	}

	dms_tx_complete(frame, budget);
}

/* Run the timer for what is due first */
static void dms_held_arm(struct dms_held *held)
{
	const struct sk_buff *first = skb_peek(&held->delayed);
	ktime_t due = KTIME_MAX;

	lockdep_assert_held(&held->lock);

	if (first)
		due = DMS_FRAME_CB(first)->due;
	if (held->late)
		due = min(due, DMS_FRAME_CB(held->late)->due);

	if (due != KTIME_MAX)
		hrtimer_start(&held->timer, due, HRTIMER_MODE_ABS_SOFT);
}

/* Back to the wire: NAPI takes it from there, past the faults that hold */
static enum hrtimer_restart dms_held_expire(struct hrtimer *timer)
{
	struct dms_held *held = container_of(timer, struct dms_held, timer);
	struct dms_channel *ch = held->ch;
	ktime_t now = ktime_get();
	struct sk_buff_head due;
	struct sk_buff *frame;

	__skb_queue_head_init(&due);

	spin_lock(&held->lock);
	while ((frame = skb_peek(&held->delayed)) &&
	       DMS_FRAME_CB(frame)->due <= now) {
		__skb_unlink(frame, &held->delayed);
		__skb_queue_tail(&due, frame);
	}
	if (held->late && DMS_FRAME_CB(held->late)->due <= now) {
		__skb_queue_tail(&due, held->late);
		held->late = NULL;
	}
	dms_held_arm(held);
	spin_unlock(&held->lock);

	skb_queue_walk(&due, frame)
		DMS_FRAME_CB(frame)->released = true;

	spin_lock(&ch->wire.lock);
	skb_queue_splice_tail(&due, &ch->wire);
	spin_unlock(&ch->wire.lock);
	dms_irq_raise(ch);

	return HRTIMER_NORESTART;
}

static bool dms_fault_hold_late(struct dms_held *held, struct sk_buff *frame)
{
	bool held_back = false;

	spin_lock(&held->lock);
	if (!held->late) {
		DMS_FRAME_CB(frame)->due = ktime_add_ns(ktime_get(),
							DMS_LATE_TIME);
		held->late = frame;
		held->passes = DMS_LATE_FRAMES;
		held_back = true;
		dms_held_arm(held);
	}
	spin_unlock(&held->lock);

	return held_back;
}

static void dms_fault_hold_delayed(struct dms_held *held,
				   struct sk_buff *frame, u32 delay_us)
{
	spin_lock(&held->lock);
	DMS_FRAME_CB(frame)->due = ktime_add_us(ktime_get(), delay_us);
	__skb_queue_tail(&held->delayed, frame);
	dms_held_arm(held);
	spin_unlock(&held->lock);
}

/* A frame has passed the late one: is that its turn? */
static struct sk_buff *dms_fault_pass_late(struct dms_held *held)
{
	struct sk_buff *frame = NULL;

	spin_lock(&held->lock);
	if (held->late && !--held->passes)
		swap(frame, held->late);
	spin_unlock(&held->lock);

	return frame;
}

static void dms_fault_receive(struct dms_channel *ch, struct sk_buff *frame,
			      int budget)
{
	struct dms_faults *faults = ch->port->faults;
	struct dms_held *held = &faults->held[ch->idx];
	u32 delay_us;

	if (!DMS_FRAME_CB(frame)->header_len) {
		dms_receive(ch, frame, budget);
		return;
	}

	if (DMS_FRAME_CB(frame)->released) {
		dms_fault_deliver(ch, frame, budget);
		return;
	}

	if (dms_fault_hit(faults, DMS_FAULT_DROP)) {
		dms_tx_drop(frame);
		return;
	}

	if (dms_fault_hit(faults, DMS_FAULT_ALLOC)) {
		dms_rx_count_alloc_fail(ch);
		dms_tx_drop(frame);
		return;
	}

	if (dms_fault_hit(faults, DMS_FAULT_REORDER) &&
	    dms_fault_hold_late(held, frame))
		return;

	delay_us = READ_ONCE(faults->value[DMS_FAULT_DELAY]);
	if (delay_us) {
		dms_fault_count(faults, DMS_FAULT_DELAY);
		dms_fault_hold_delayed(held, frame, delay_us);
		return;
	}

	dms_fault_deliver(ch, frame, budget);
	frame = dms_fault_pass_late(held);
	if (frame)
		dms_fault_deliver(ch, frame, budget);
}

/* Drop what is held. NAPI is disabled, no frame comes in. */
void dms_faults_flush(struct dms_channel *ch)
{
	struct dms_held *held = &ch->port->faults->held[ch->idx];

	hrtimer_cancel(&held->timer);

	spin_lock_bh(&held->lock);
	if (held->late)
		__skb_queue_tail(&held->delayed, held->late);
	held->late = NULL;
	skb_queue_splice_tail_init(&held->delayed, &ch->backlog);
	spin_unlock_bh(&held->lock);
}

/* Under the instance lock */
void dms_fault_set(struct dms_port *port, enum dms_fault fault, u32 value)
{
	struct dms_faults *faults = port->faults;

	atomic_set(&faults->seen[fault], 0);
	WRITE_ONCE(faults->value[fault], value);
	WRITE_ONCE(port->receive,
		   memchr_inv(faults->value, 0, sizeof(faults->value)) ?
		   dms_fault_receive : dms_receive);
}

int dms_faults_alloc(struct dms_port *port)
{
	struct dms_faults *faults;
	int i;

	faults = kzalloc_obj(*faults, GFP_KERNEL);
	if (!faults)
		return -ENOMEM;

	for (i = 0; i < DMS_N_FAULTS; i++) {
		faults->knob[i].port = port;
		faults->knob[i].fault = i;
	}

	for (i = 0; i < DMS_MAX_CHANNELS; i++) {
		struct dms_held *held = &faults->held[i];

		held->ch = &port->channels[i];
		spin_lock_init(&held->lock);
		__skb_queue_head_init(&held->delayed);
		hrtimer_setup(&held->timer, dms_held_expire, CLOCK_MONOTONIC,
			      HRTIMER_MODE_ABS_SOFT);
	}

	port->faults = faults;
	return 0;
}

void dms_faults_free(struct dms_port *port)
{
	kfree(port->faults);
}
