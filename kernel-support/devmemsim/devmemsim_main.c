// SPDX-License-Identifier: GPL-2.0-only
/*
 * Module, parent device and the two ends of the cable.
 */
#include <linux/dma-mapping.h>
#include <linux/kmemleak.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/platform_device.h>
#include <linux/sizes.h>

#include "devmemsim.h"
#include "devmemsim_steer.h"

static bool keep_device = true;
module_param(keep_device, bool, 0444);
MODULE_PARM_DESC(keep_device,
		 "Leave the device behind for bindings which outlive the module (default: Y)");

static struct platform_device *dms_pdev;

static void dms_link_free(struct dms_link *link)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(link->port); i++)
		if (link->port[i])
			dms_netdev_free(link->port[i]->netdev);
	kfree(link);
}

static struct dms_link *dms_link_alloc(struct device *dev)
{
	struct net_device *netdev;
	struct dms_link *link;
	int i;

	link = kzalloc_obj(*link, GFP_KERNEL);
	if (!link)
		return ERR_PTR(-ENOMEM);

	spin_lock_init(&link->lock);
	for (i = 0; i < ARRAY_SIZE(link->port); i++) {
		netdev = dms_netdev_alloc(dev, link, i);
		if (IS_ERR(netdev)) {
			dms_link_free(link);
			return ERR_CAST(netdev);
		}
	}

	link->port[0]->peer = link->port[1];
	link->port[1]->peer = link->port[0];
	return link;
}

static int dms_dma_init(struct device *dev)
{
	int err;

	err = dma_set_mask_and_coherent(dev, DMA_BIT_MASK(64));
	if (err)
		return err;

	/* Buffers are as contiguous as the exporter's memory */
	dma_set_max_seg_size(dev, SZ_2G);

	return dms_dma_check(dev);
}

static int dms_probe(struct platform_device *pdev)
{
	struct dms_link *link;
	int err, i;

	err = dms_dma_init(&pdev->dev);
	if (err)
		return err;

	link = dms_link_alloc(&pdev->dev);
	if (IS_ERR(link))
		return PTR_ERR(link);

	for (i = 0; i < ARRAY_SIZE(link->port); i++) {
		err = register_netdev(link->port[i]->netdev);
		if (err)
			goto err_unregister;

		dms_debugfs_add(link->port[i]);
	}

	/* A dmabuf binding may outlive the net device it was made for. Core
	 * then unmaps the dmabuf for the parent device, in Linux 7.3 without
	 * a reference on it. So leave one behind, for good.
	 */
	if (keep_device)
		get_device(&pdev->dev);

	platform_set_drvdata(pdev, link);
	return 0;

err_unregister:
	while (i--) {
		dms_debugfs_del(link->port[i]);
		unregister_netdev(link->port[i]->netdev);
	}
	dms_link_free(link);
	return err;
}

static void dms_remove(struct platform_device *pdev)
{
	struct dms_link *link = platform_get_drvdata(pdev);
	int i;

	/* Frames of one end may be in the hands of the other until both are
	 * closed, so free neither before.
	 */
	for (i = 0; i < ARRAY_SIZE(link->port); i++) {
		dms_debugfs_del(link->port[i]);
		unregister_netdev(link->port[i]->netdev);
	}
	dms_link_free(link);

	/* See dms_probe() */
	if (keep_device)
		kmemleak_not_leak(pdev);
}

static struct platform_driver dms_driver = {
	.driver = {
		.name	= DMS_NAME,
	},
	.probe		= dms_probe,
	.remove		= dms_remove,
};

static int __init dms_init(void)
{
	int err;

	if (!dms_rules || dms_rules > DMS_MAX_RULES)
		return -EINVAL;

	dms_debugfs_init();

	err = platform_driver_register(&dms_driver);
	if (err)
		goto err_debugfs;

	dms_pdev = platform_device_register_simple(DMS_NAME,
						   PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(dms_pdev)) {
		err = PTR_ERR(dms_pdev);
		goto err_driver;
	}

	/* A device is registered even if no driver can drive it */
	if (!platform_get_drvdata(dms_pdev)) {
		err = -ENODEV;
		goto err_device;
	}

	return 0;

err_device:
	platform_device_unregister(dms_pdev);
err_driver:
	platform_driver_unregister(&dms_driver);
err_debugfs:
	dms_debugfs_exit();
	return err;
}

static void __exit dms_exit(void)
{
	platform_device_unregister(dms_pdev);
	platform_driver_unregister(&dms_driver);
	dms_debugfs_exit();
}

module_init(dms_init);
module_exit(dms_exit);

MODULE_DESCRIPTION("Software NIC with device memory Rx queues");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1");
MODULE_IMPORT_NS("NETDEV_INTERNAL");
