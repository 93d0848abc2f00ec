// SPDX-License-Identifier: GPL-2.0-only
/*
 * Interrupts: each channel has its own, as it had an MSI-X vector on a NIC. It
 * fires on the CPU that its affinity says, once, and NAPI arms it again.
 * Moderation delays it, so that NAPI gets, and hardware GRO merges, several
 * frames at a time.
 */
#include <linux/cpumask.h>
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/irq.h>
#include <linux/irqdomain.h>
#include <linux/ktime.h>
#include <linux/netdevice.h>
#include <linux/rcupdate.h>
#include <linux/smp.h>

#include "devmemsim.h"

static void dms_irq_fire_here(struct irq_work *work)
{
	struct dms_channel *ch = container_of(work, struct dms_channel,
					      irq_work);

	generic_handle_irq(ch->irq);
}

static void dms_irq_fire_there(void *data)
{
	struct dms_channel *ch = data;

	/* From here on it takes another call. Fully ordered: whoever finds it
	 * set has put his frame where the poll that we bring about finds it.
	 */
	xchg(&ch->irq_called, false);
	generic_handle_irq(ch->irq);
}

/* A frame is on the wire, BHs are disabled */
void dms_irq_raise(struct dms_channel *ch)
{
	unsigned int cpu;

	/* Pairs with dms_irq_arm(): we see it armed, or NAPI sees the frame */
	smp_mb();
	if (!READ_ONCE(ch->irq_armed) || !xchg(&ch->irq_armed, false))
		return;

	cpu = READ_ONCE(ch->irq_cpu);
	if (cpu == smp_processor_id()) {
		irq_work_queue(&ch->irq_work);
		return;
	}

	/* irq_work_queue_on() is not for modules */
	if (xchg(&ch->irq_called, true))
		return;
	if (smp_call_function_single_async(cpu, &ch->irq_csd)) {
		xchg(&ch->irq_called, false);
		irq_work_queue(&ch->irq_work);
	}
}

static enum hrtimer_restart dms_irq_expire(struct hrtimer *timer)
{
	struct dms_channel *ch = container_of(timer, struct dms_channel,
					      rx_timer);

	dms_irq_raise(ch);
	return HRTIMER_NORESTART;
}

void dms_irq_init(struct dms_channel *ch)
{
	hrtimer_setup(&ch->rx_timer, dms_irq_expire, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_SOFT);
}

/* Raise the interrupt later, for a frame that waits for others */
void dms_irq_delay(struct dms_channel *ch, u32 usecs)
{
	hrtimer_start(&ch->rx_timer, us_to_ktime(usecs), HRTIMER_MODE_REL_SOFT);
}

/* NAPI is complete. What came since it looked last raises the interrupt, or the
 * timer is going to.
 */
void dms_irq_arm(struct dms_channel *ch)
{
	/* Pairs with dms_irq_raise() */
	smp_store_mb(ch->irq_armed, true);
	if (!skb_queue_empty_lockless(&ch->wire) &&
	    !hrtimer_is_queued(&ch->rx_timer))
		dms_irq_raise(ch);
}

static irqreturn_t dms_irq_handler(int irq, void *data)
{
	struct dms_channel *ch = data;

	napi_schedule(&ch->napi);
	return IRQ_HANDLED;
}

int dms_irq_request(struct dms_channel *ch)
{
	int err;

	snprintf(ch->irq_name, sizeof(ch->irq_name), "%s-%u",
		 ch->port->netdev->name, ch->idx);
	err = request_irq(ch->irq, dms_irq_handler, 0, ch->irq_name, ch);
	if (err)
		return err;

	netif_napi_set_irq_locked(&ch->napi, ch->irq);
	return 0;
}

/* After the NAPI instance, which has a notifier for the affinity */
void dms_irq_release(struct dms_channel *ch)
{
	free_irq(ch->irq, ch);
}

static int dms_irq_set_affinity(struct irq_data *data,
				const struct cpumask *mask, bool force)
{
	struct dms_channel *ch = irq_data_get_irq_chip_data(data);
	unsigned int cpu;

	cpu = cpumask_first_and(mask, cpu_online_mask);
	if (cpu >= nr_cpu_ids)
		return -EINVAL;

	WRITE_ONCE(ch->irq_cpu, cpu);
	irq_data_update_effective_affinity(data, cpumask_of(cpu));
	return IRQ_SET_MASK_OK;
}

/* There is nothing to acknowledge, and who is not interested does not arm */
static void dms_irq_nop(struct irq_data *data)
{
}

static struct irq_chip dms_irq_chip = {
	.name			= DMS_NAME,
	.irq_ack		= dms_irq_nop,
	.irq_mask		= dms_irq_nop,
	.irq_unmask		= dms_irq_nop,
	.irq_set_affinity	= dms_irq_set_affinity,
	.flags			= IRQCHIP_SKIP_SET_WAKE,
};

static int dms_irq_map(struct irq_domain *domain, unsigned int irq,
		       irq_hw_number_t hwirq)
{
	struct dms_port *port = domain->host_data;

	irq_set_chip_data(irq, &port->channels[hwirq]);
	irq_set_chip_and_handler_name(irq, &dms_irq_chip, handle_edge_irq,
				      "edge");
	irq_set_noprobe(irq);
	return 0;
}

static const struct irq_domain_ops dms_irq_domain_ops = {
	.map	= dms_irq_map,
};

static void dms_irqs_unmap(struct dms_port *port, unsigned int count)
{
	while (count--)
		irq_dispose_mapping(port->channels[count].irq);
}

/* The numbers stay for the life of the device, and the affinity with them */
int dms_irqs_alloc(struct dms_port *port, unsigned int id)
{
	struct fwnode_handle *fwnode;
	unsigned int i;

	fwnode = irq_domain_alloc_named_id_fwnode(DMS_NAME, id);
	if (!fwnode)
		return -ENOMEM;

	port->irq_domain = irq_domain_create_linear(fwnode, DMS_MAX_CHANNELS,
						    &dms_irq_domain_ops, port);
	if (!port->irq_domain)
		goto err_free_fwnode;

	for (i = 0; i < DMS_MAX_CHANNELS; i++) {
		struct dms_channel *ch = &port->channels[i];

		ch->irq_work = IRQ_WORK_INIT_HARD(dms_irq_fire_here);
		INIT_CSD(&ch->irq_csd, dms_irq_fire_there, ch);
		ch->irq = irq_create_mapping(port->irq_domain, i);
		if (!ch->irq)
			goto err_unmap;
	}

	netif_set_affinity_auto(port->netdev);
	return 0;

err_unmap:
	dms_irqs_unmap(port, i);
	irq_domain_remove(port->irq_domain);
err_free_fwnode:
	irq_domain_free_fwnode(fwnode);
	return -ENOMEM;
}

/* Nobody raises interrupts any more, but they may be on their way */
void dms_irqs_free(struct dms_port *port)
{
	struct fwnode_handle *fwnode = port->irq_domain->fwnode;
	unsigned int i;

	for (i = 0; i < DMS_MAX_CHANNELS; i++) {
		irq_work_sync(&port->channels[i].irq_work);
		while (READ_ONCE(port->channels[i].irq_called))
			cpu_relax();
	}
	/* For those which are called but have not returned */
	synchronize_rcu();

	dms_irqs_unmap(port, DMS_MAX_CHANNELS);
	irq_domain_remove(port->irq_domain);
	irq_domain_free_fwnode(fwnode);
}
