// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lets no node of an xarray be had without waiting, for one process: what is
 * allocated so is freed again, and NULL returned. In the log it then says
 * whether the process waits for one with BHs disabled. In recvmsg(), and where a
 * page pool is filled, nothing but the xarray allocates by kmem_cache_alloc_lru().
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/slab.h>

static int pid;
module_param(pid, int, 0600);
MODULE_PARM_DESC(pid, "the process");

static int disabled;
module_param(disabled, int, 0400);
MODULE_PARM_DESC(disabled, "how often it would have waited with BHs disabled");

static int enabled;
module_param(enabled, int, 0400);
MODULE_PARM_DESC(enabled, "how often it would have waited with BHs enabled");

static int no_memory_entry(struct kretprobe_instance *instance,
			   struct pt_regs *regs)
{
	struct kmem_cache **cache = (void *)instance->data;
	gfp_t gfp = regs_get_kernel_argument(regs, 2);

	if (current->tgid != READ_ONCE(pid))
		return 1;

	if (gfpflags_allow_blocking(gfp)) {
		if (softirq_count())
			disabled++;
		else
			enabled++;
		return 1;
	}

	*cache = (void *)regs_get_kernel_argument(regs, 0);
	return 0;
}

static int no_memory_return(struct kretprobe_instance *instance,
			    struct pt_regs *regs)
{
	struct kmem_cache **cache = (void *)instance->data;
	void *object = (void *)regs_return_value(regs);

	if (object) {
		kmem_cache_free(*cache, object);
		regs_set_return_value(regs, 0);
	}
	return 0;
}

static struct kretprobe no_memory = {
	.kp.symbol_name = "kmem_cache_alloc_lru_noprof",
	.entry_handler = no_memory_entry,
	.handler = no_memory_return,
	.data_size = sizeof(struct kmem_cache *),
	.maxactive = 16,
};

static int __init no_memory_init(void)
{
	return register_kretprobe(&no_memory);
}

static void __exit no_memory_exit(void)
{
	unregister_kretprobe(&no_memory);
}

module_init(no_memory_init);
module_exit(no_memory_exit);

MODULE_DESCRIPTION("No memory for xarrays without waiting");
MODULE_LICENSE("GPL");
