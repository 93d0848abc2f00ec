// SPDX-License-Identifier: GPL-2.0-only
/*
 * The DMA engine: how the "device" gets at memory.
 *
 * It copies with the CPU through the kernel's direct map. That is possible
 * where a DMA address is a physical address, and for memory that the direct
 * map covers; everything else is refused.
 */
#include <linux/dma-mapping.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <net/page_pool/helpers.h>

#include "devmemsim.h"

/* The direct map covers all memory */
static_assert(IS_ENABLED(CONFIG_64BIT));

/* Ask the DMA API instead of looking for its backends: bounce buffers, an
 * IOMMU that translates and encrypted guests all show in the address.
 */
int dms_dma_check(struct device *dev)
{
	struct page *page;
	dma_addr_t addr;
	int err = 0;

	page = alloc_page(GFP_KERNEL);
	if (!page)
		return -ENOMEM;

	addr = dma_map_page(dev, page, 0, PAGE_SIZE, DMA_FROM_DEVICE);
	if (dma_mapping_error(dev, addr)) {
		dev_err(dev, "cannot map memory for DMA\n");
		err = -EIO;
		goto err_free_page;
	}

	if (addr != page_to_phys(page)) {
		dev_err(dev, "DMA addresses are not physical addresses: boot without swiotlb=force, memory encryption and IOMMU translation\n");
		err = -EOPNOTSUPP;
	}

	dma_unmap_page(dev, addr, PAGE_SIZE, DMA_FROM_DEVICE);
err_free_page:
	__free_page(page);
	return err;
}

static bool dms_pfn_reachable(unsigned long pfn)
{
	return pfn_valid(pfn) && !is_zone_device_page(pfn_to_page(pfn));
}

/* Device memory (BARs) is not in the direct map, or not as normal memory */
bool dms_dma_reachable(netmem_ref netmem, size_t len)
{
	dma_addr_t addr;

	if (!netmem_is_net_iov(netmem))
		return true;

	addr = page_pool_get_dma_addr_netmem(netmem);
	return dms_pfn_reachable(PHYS_PFN(addr)) &&
	       dms_pfn_reachable(PHYS_PFN(addr + len - 1));
}

/* For buffers of ours */
static void *dms_dma_va(netmem_ref netmem)
{
	return phys_to_virt(page_pool_get_dma_addr_netmem(netmem));
}

/* For fragments that the peer sends: its pages are not mapped for DMA */
static void *dms_dma_frag_va(const skb_frag_t *frag)
{
	if (!skb_frag_is_net_iov(frag))
		return skb_frag_address(frag);

	return dms_dma_va(skb_frag_netmem(frag)) + skb_frag_off(frag);
}

/* Same job as skb_copy_bits(), for payload that the CPU is not meant to read */
static int dms_dma_read_netmem(const struct sk_buff *frame,
			       unsigned int offset, void *dst,
			       unsigned int len)
{
	unsigned int start, size, n;
	skb_frag_t *frag;
	int i;

	start = skb_headlen(frame);
	if (offset < start) {
		n = min(len, start - offset);
		memcpy(dst, frame->data + offset, n);
		offset += n;
		dst += n;
		len -= n;
	}

	for (i = 0; len && i < skb_shinfo(frame)->nr_frags; i++) {
		frag = &skb_shinfo(frame)->frags[i];
		size = skb_frag_size(frag);
		if (offset < start + size) {
			n = min(len, start + size - offset);
			memcpy(dst, dms_dma_frag_va(frag) + offset - start, n);
			offset += n;
			dst += n;
			len -= n;
		}
		start += size;
	}

	return len ? -EFAULT : 0;
}

/* Read from a frame that the peer sends */
int dms_dma_read(const struct sk_buff *frame, unsigned int offset,
		 void *dst, unsigned int len)
{
	if (likely(skb_frags_readable(frame)))
		return skb_copy_bits(frame, offset, dst, len);

	return dms_dma_read_netmem(frame, offset, dst, len);
}

/* Same job as skb_checksum(), likewise */
static __wsum dms_dma_sum_netmem(const struct sk_buff *frame,
				 unsigned int offset, unsigned int len)
{
	unsigned int start, size, n, pos = 0;
	__wsum part, sum = 0;
	skb_frag_t *frag;
	int i;

	start = skb_headlen(frame);
	if (offset < start) {
		n = min(len, start - offset);
		sum = csum_partial(frame->data + offset, n, 0);
		offset += n;
		len -= n;
		pos = n;
	}

	for (i = 0; len && i < skb_shinfo(frame)->nr_frags; i++) {
		frag = &skb_shinfo(frame)->frags[i];
		size = skb_frag_size(frag);
		if (offset < start + size) {
			n = min(len, start + size - offset);
			part = csum_partial(dms_dma_frag_va(frag) +
					    offset - start, n, 0);
			sum = csum_block_add(sum, part, pos);
			offset += n;
			len -= n;
			pos += n;
		}
		start += size;
	}

	return sum;
}

/* The checksum of part of a frame that the peer sends */
__wsum dms_dma_sum(const struct sk_buff *frame, unsigned int offset,
		   unsigned int len)
{
	if (likely(skb_frags_readable(frame)))
		return skb_checksum(frame, offset, len, 0);

	return dms_dma_sum_netmem(frame, offset, len);
}

/* Write part of a frame to a buffer */
int dms_dma_write(netmem_ref netmem, unsigned int netmem_offset,
		  const struct sk_buff *frame, unsigned int offset,
		  unsigned int len)
{
	return dms_dma_read(frame, offset, dms_dma_va(netmem) + netmem_offset,
			    len);
}
