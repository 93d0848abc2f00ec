// SPDX-License-Identifier: GPL-2.0-only
/*
 * Exports dmabufs whose size is one thing, and what they map to another. An
 * ioctl() of /dev/exporter whose command is the size in pages and whose
 * argument is how many of them are mapped returns the dmabuf's descriptor.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

struct exported {
	unsigned int count;
	struct page *pages[] __counted_by(count);
};

static struct sg_table *exporter_map(struct dma_buf_attachment *attachment,
				     enum dma_data_direction direction)
{
	struct exported *exported = attachment->dmabuf->priv;
	struct sg_table *sgt;
	int err;

	sgt = kzalloc_obj(*sgt);
	if (!sgt)
		return ERR_PTR(-ENOMEM);

	err = sg_alloc_table_from_pages(sgt, exported->pages, exported->count,
					0, (size_t)exported->count << PAGE_SHIFT,
					GFP_KERNEL);
	if (err)
		goto err_free;

	err = dma_map_sgtable(attachment->dev, sgt, direction, 0);
	if (err)
		goto err_free_table;

	return sgt;

err_free_table:
	sg_free_table(sgt);
err_free:
	kfree(sgt);
	return ERR_PTR(err);
}

static void exporter_unmap(struct dma_buf_attachment *attachment,
			   struct sg_table *sgt,
			   enum dma_data_direction direction)
{
	dma_unmap_sgtable(attachment->dev, sgt, direction, 0);
	sg_free_table(sgt);
	kfree(sgt);
}

static void exported_free(struct exported *exported)
{
	unsigned int i;

	for (i = 0; i < exported->count; i++)
		if (exported->pages[i])
			put_page(exported->pages[i]);
	kfree(exported);
}

static void exporter_release(struct dma_buf *dmabuf)
{
	exported_free(dmabuf->priv);
}

static const struct dma_buf_ops exporter_dma_buf_ops = {
	.map_dma_buf = exporter_map,
	.unmap_dma_buf = exporter_unmap,
	.release = exporter_release,
};

static long exporter_ioctl(struct file *file, unsigned int size,
			   unsigned long mapped)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct exported *exported;
	struct dma_buf *dmabuf;
	unsigned int i;
	int fd;

	if (!size || size > 512 || !mapped || mapped > 512)
		return -EINVAL;

	exported = kzalloc(struct_size(exported, pages, mapped), GFP_KERNEL);
	if (!exported)
		return -ENOMEM;

	exported->count = mapped;
	for (i = 0; i < mapped; i++) {
		exported->pages[i] = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!exported->pages[i]) {
			exported_free(exported);
			return -ENOMEM;
		}
	}

	info.ops = &exporter_dma_buf_ops;
	info.size = (size_t)size << PAGE_SHIFT;
	info.flags = O_RDWR;
	info.priv = exported;
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf)) {
		exported_free(exported);
		return PTR_ERR(dmabuf);
	}

	fd = dma_buf_fd(dmabuf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(dmabuf);
	return fd;
}

static const struct file_operations exporter_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = exporter_ioctl,
};

static struct miscdevice exporter = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "exporter",
	.fops = &exporter_fops,
};
module_misc_device(exporter);

MODULE_DESCRIPTION("dmabufs that map to more or less than their size");
MODULE_IMPORT_NS("DMA_BUF");
MODULE_LICENSE("GPL");
