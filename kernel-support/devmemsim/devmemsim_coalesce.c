// SPDX-License-Identifier: GPL-2.0-only
/*
 * Interrupt moderation: frames wait on the receiving device for others, so that
 * NAPI gets, and hardware GRO merges, several at a time.
 */
#include <linux/ethtool.h>
#include <linux/hrtimer.h>
#include <linux/ktime.h>
#include <linux/netdevice.h>

#include "devmemsim.h"

#define DMS_MAX_RX_USECS	100000

/* Frames that wait on the device at the expense of nobody */
#define DMS_WIRE_LEN		4096

static enum hrtimer_restart dms_coalesce_expire(struct hrtimer *timer)
{
	struct dms_channel *ch = container_of(timer, struct dms_channel,
					      rx_timer);

	dms_irq_raise(ch);
	return HRTIMER_NORESTART;
}

void dms_coalesce_init(struct dms_channel *ch)
{
	hrtimer_setup(&ch->rx_timer, dms_coalesce_expire, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_SOFT);
}

/* Put a frame on the wire to a channel. It may be completed before this
 * returns.
 */
void dms_coalesce_wire(struct dms_channel *ch, struct sk_buff *frame)
{
	u32 usecs = READ_ONCE(ch->port->rx_usecs);
	bool first;

	/* Or the sender's queue limits would say how many can wait */
	if (usecs && READ_ONCE(ch->wire.qlen) < DMS_WIRE_LEN)
		dms_tx_sent(frame);

	spin_lock(&ch->wire.lock);
	first = skb_queue_empty(&ch->wire);
	__skb_queue_tail(&ch->wire, frame);
	spin_unlock(&ch->wire.lock);

	/* For those behind the first one the timer runs, or NAPI is about to */
	if (!usecs)
		dms_irq_raise(ch);
	else if (first)
		hrtimer_start(&ch->rx_timer, us_to_ktime(usecs),
			      HRTIMER_MODE_REL_SOFT);
}

/* The timer is going to raise the interrupt for what is on the wire */
bool dms_coalesce_waits(struct dms_channel *ch)
{
	return hrtimer_is_queued(&ch->rx_timer);
}

int dms_get_coalesce(struct net_device *netdev, struct ethtool_coalesce *coal,
		     struct kernel_ethtool_coalesce *kernel_coal,
		     struct netlink_ext_ack *extack)
{
	const struct dms_port *port = netdev_priv(netdev);

	coal->rx_coalesce_usecs = port->rx_usecs;
	return 0;
}

int dms_set_coalesce(struct net_device *netdev, struct ethtool_coalesce *coal,
		     struct kernel_ethtool_coalesce *kernel_coal,
		     struct netlink_ext_ack *extack)
{
	struct dms_port *port = netdev_priv(netdev);

	if (coal->rx_coalesce_usecs > DMS_MAX_RX_USECS) {
		NL_SET_ERR_MSG_FMT_MOD(extack, "rx-usecs is at most %u",
				       DMS_MAX_RX_USECS);
		return -ERANGE;
	}

	WRITE_ONCE(port->rx_usecs, coal->rx_coalesce_usecs);
	return 0;
}
