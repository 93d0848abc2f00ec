/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef DEVMEMSIM_FAULT_H
#define DEVMEMSIM_FAULT_H

#include <linux/atomic.h>
#include <linux/hrtimer.h>
#include <linux/skbuff.h>
#include <linux/spinlock.h>

#include "devmemsim.h"

enum dms_fault {
	DMS_FAULT_DROP,
	DMS_FAULT_DUPLICATE,
	DMS_FAULT_REORDER,
	DMS_FAULT_DELAY,
	DMS_FAULT_ALLOC,
	DMS_FAULT_CORRUPT,
	DMS_FAULT_LINEAR,
	DMS_FAULT_NO_SPLIT,
	DMS_FAULT_PACK,
	DMS_N_FAULTS
};

/* Values of DMS_FAULT_PACK */
enum {
	DMS_PACK_DENSE = 1,
	DMS_PACK_HALVES,
};

/**
 * struct dms_held - frames that a fault keeps from a channel
 * @ch:		channel they belong to
 * @lock:	protects the rest against the timer
 * @delayed:	frames in order, each with the time it is due
 * @late:	a frame that waits for others to pass
 * @passes:	how many more
 * @timer:	runs when the next of them is due
 */
struct dms_held {
	struct dms_channel *ch;
	spinlock_t lock;	/* protects the rest against the timer */
	struct sk_buff_head delayed;
	struct sk_buff *late;
	unsigned int passes;
	struct hrtimer timer;
};

/* What a debugfs file refers to */
struct dms_knob {
	struct dms_port *port;
	enum dms_fault fault;
};

/**
 * struct dms_faults - fault injection of a port
 * @dir:	debugfs directory
 * @knob:	what its files refer to
 * @value:	settings, 0 is off
 * @seen:	frames that a fault with a rate has seen since it was set
 * @injected:	frames affected by each fault, ever
 * @held:	frames held back, per channel
 */
struct dms_faults {
	struct dentry *dir;
	struct dms_knob knob[DMS_N_FAULTS];
	u32 value[DMS_N_FAULTS];
	atomic_t seen[DMS_N_FAULTS];
	atomic_long_t injected[DMS_N_FAULTS];
	struct dms_held held[DMS_MAX_CHANNELS];
};

/* devmemsim_fault.c */
int dms_faults_alloc(struct dms_port *port);
void dms_faults_free(struct dms_port *port);
void dms_faults_flush(struct dms_channel *ch);
void dms_fault_set(struct dms_port *port, enum dms_fault fault, u32 value);

#endif
