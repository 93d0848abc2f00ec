// SPDX-License-Identifier: Apache-2.0
#include "device_block.hpp"

#include <fmt/format.h>

#include "base/byte_size.hpp"

namespace gpurx::detail::cuda {

device_block::device_block(gpu const& on, std::size_t bytes, use what_for) : on_{on}, size_{round_up(bytes, unit)}
{
    auto const& facts = on_.facts();
    if (!facts.virtual_memory || (what_for == use::rdma && !facts.rdma_memory)) {
        check(on_.calls().cuMemAlloc(&address_, size_), "allocate",
              fmt::format("{} of GPU {}", size_text(bytes), on_.ordinal()));
        return;
    }
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = on_.ordinal()};
    properties.allocFlags.gpuDirectRDMACapable = what_for == use::rdma ? 1 : 0;
    try {
        map(properties);
    } catch (...) {
        release();
        throw;
    }
}

void device_block::map(CUmemAllocationProp const& properties)
{
    auto const& calls = on_.calls();
    auto const object = fmt::format("{} of GPU {}", size_text(size_), on_.ordinal());
    std::size_t granularity = unit;
    check(calls.cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "allocate",
          object);
    size_ = round_up(size_, granularity);
    check(calls.cuMemCreate(&physical_, size_, &properties, 0), "allocate", object);
    has_physical_ = true;
    check(calls.cuMemAddressReserve(&address_, size_, unit, 0, 0), "reserve addresses for", object);
    reserved_ = true;
    check(calls.cuMemMap(address_, size_, 0, physical_, 0), "map", object);
    mapped_ = true;
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check(calls.cuMemSetAccess(address_, size_, &access, 1), "give access to", object);
}

void device_block::release() noexcept
{
    auto const& calls = on_.calls();
    if (mapped_ && !ending())
        static_cast<void>(calls.cuMemUnmap(address_, size_));
    // The process may have begun to end meanwhile: that waits for the GPU.
    if (reserved_ && !ending())
        static_cast<void>(calls.cuMemAddressFree(address_, size_));
    else if (!has_physical_ && address_ != 0 && !ending())
        static_cast<void>(calls.cuMemFree(address_));
    if (has_physical_ && !ending())
        static_cast<void>(calls.cuMemRelease(physical_));
}

}  // namespace gpurx::detail::cuda
