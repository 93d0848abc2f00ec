// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files that set and count faults
 */
#include <linux/debugfs.h>
#include <linux/netdevice.h>
#include <linux/seq_file.h>

#include "devmemsim.h"
#include "devmemsim_fault.h"

static const struct {
	const char *name;
	u32 max;
} dms_fault_info[DMS_N_FAULTS] = {
	[DMS_FAULT_DROP]	= { "drop", U32_MAX },
	[DMS_FAULT_DUPLICATE]	= { "duplicate", U32_MAX },
	[DMS_FAULT_REORDER]	= { "reorder", U32_MAX },
	[DMS_FAULT_DELAY]	= { "delay_us", USEC_PER_SEC },
	[DMS_FAULT_ALLOC]	= { "alloc_fail", U32_MAX },
	[DMS_FAULT_CORRUPT]	= { "corrupt", U32_MAX },
	[DMS_FAULT_LINEAR]	= { "linear_bytes", U16_MAX },
	[DMS_FAULT_NO_SPLIT]	= { "no_split", U32_MAX },
	[DMS_FAULT_PACK]	= { "pack", DMS_PACK_HALVES },
};

static struct dentry *dms_debugfs_root;

static int dms_knob_get(void *data, u64 *value)
{
	const struct dms_knob *knob = data;

	*value = READ_ONCE(knob->port->faults->value[knob->fault]);
	return 0;
}

static int dms_knob_set(void *data, u64 value)
{
	const struct dms_knob *knob = data;

	if (value > dms_fault_info[knob->fault].max)
		return -ERANGE;

	netdev_lock(knob->port->netdev);
	dms_fault_set(knob->port, knob->fault, value);
	netdev_unlock(knob->port->netdev);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(dms_knob_fops, dms_knob_get, dms_knob_set, "%llu\n");

static int dms_injected_show(struct seq_file *s, void *unused)
{
	const struct dms_port *port = s->private;
	int i;

	for (i = 0; i < DMS_N_FAULTS; i++)
		seq_printf(s, "%s %ld\n", dms_fault_info[i].name,
			   atomic_long_read(&port->faults->injected[i]));

	return 0;
}
DEFINE_SHOW_ATTRIBUTE(dms_injected);

void dms_debugfs_add(struct dms_port *port)
{
	struct dms_faults *faults = port->faults;
	int i;

	faults->dir = debugfs_create_dir(netdev_name(port->netdev),
					 dms_debugfs_root);
	for (i = 0; i < DMS_N_FAULTS; i++)
		debugfs_create_file_unsafe(dms_fault_info[i].name, 0600,
					   faults->dir, &faults->knob[i],
					   &dms_knob_fops);
	debugfs_create_file("injected", 0400, faults->dir, port,
			    &dms_injected_fops);
}

void dms_debugfs_del(struct dms_port *port)
{
	debugfs_remove_recursive(port->faults->dir);
}

void dms_debugfs_init(void)
{
	dms_debugfs_root = debugfs_create_dir(DMS_NAME, NULL);
}

void dms_debugfs_exit(void)
{
	debugfs_remove_recursive(dms_debugfs_root);
}
