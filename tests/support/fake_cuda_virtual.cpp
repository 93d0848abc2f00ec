// SPDX-License-Identifier: Apache-2.0
//
// The fake CUDA driver's virtual memory: cuMemCreate and what maps it.
#include <sys/mman.h>

#include <algorithm>

#include "fake_cuda_state.hpp"

namespace fake_cuda::inside {

namespace {

constexpr std::size_t granularity = std::size_t{2} << 20;

bool is_device(state& s, CUmemLocation const& location)
{
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 &&
           static_cast<std::size_t>(location.id) < s.devices.size();
}

// The mappings that make up exactly this range of a reservation; none if there are gaps, or one reaches out of it.
std::vector<std::uint64_t> mappings_of(region const& reservation, range const& addresses)
{
    std::vector<std::uint64_t> found;
    auto at = addresses.begin - reservation.addresses.begin;
    auto const end = at + addresses.size;
    while (at < end) {
        auto const here = reservation.mappings.find(at);
        if (here == reservation.mappings.end() || here->second.size > end - at)
            return {};
        found.push_back(at);
        at += here->second.size;
    }
    return found;
}

// The sticky error of a device's contexts, if there is one.
CUresult device_error(state& s, int device)
{
    for (auto const& [handle, context] : s.contexts)
        if (context->device == device && context->error != CUDA_SUCCESS)
            return context->error;
    return CUDA_SUCCESS;
}

}  // namespace

}  // namespace fake_cuda::inside

using namespace fake_cuda::inside;

extern "C" {

CUresult CUDAAPI cuMemGetAllocationGranularity(std::size_t* into, CUmemAllocationProp const* wish,
                                               CUmemAllocationGranularity_flags /*option*/)
{
    return call(__func__, [&](state& s, guard&, std::string const&) {
        if (into == nullptr || wish == nullptr || !is_device(s, wish->location))
            return CUDA_ERROR_INVALID_VALUE;
        *into = granularity;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* into, std::size_t size, CUmemAllocationProp const* wish,
                             unsigned long long flags)
{
    return call(__func__, [&](state& s, guard&, std::string const&) {
        if (into == nullptr || wish == nullptr || size == 0 || size % granularity != 0 || flags != 0 ||
            wish->type != CU_MEM_ALLOCATION_TYPE_PINNED)
            return CUDA_ERROR_INVALID_VALUE;
        if (!is_device(s, wish->location))
            return CUDA_ERROR_INVALID_DEVICE;
        auto const ordinal = wish->location.id;
        auto const& device = s.devices[static_cast<std::size_t>(ordinal)];
        auto const rdma = wish->allocFlags.gpuDirectRDMACapable != 0;
        if (!device.has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
            (rdma && !device.has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)))
            return CUDA_ERROR_NOT_SUPPORTED;
        if (auto const error = device_error(s, ordinal); error != CUDA_SUCCESS)
            return error;
        if (!fits(s, ordinal, size))
            return CUDA_ERROR_OUT_OF_MEMORY;
        *into = s.new_handle();
        s.physicals[*into] = std::make_shared<physical>(s, size, ordinal, rdma);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    return call(__func__, [&](state& s, guard&, std::string const& name) {
        auto const found = look_up(s, s.physicals, handle, name);
        if (!found)
            return CUDA_ERROR_INVALID_VALUE;
        s.physicals.erase(handle);
        s.past_handles.insert(handle);
        return device_error(s, found->device);
    });
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* into, std::size_t size, std::size_t alignment, CUdeviceptr /*wish*/,
                                     unsigned long long flags)
{
    return call(__func__, [&](state& s, guard&, std::string const&) {
        if (into == nullptr || size == 0 || size % granularity != 0 || flags != 0 || (alignment & (alignment - 1)) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        auto made = std::make_shared<region>();
        made->kind = region_kind::reservation;
        made->addresses = {address_of(reserve(size, std::max(alignment, granularity))), size};
        made->alias = reserve(size, page_size());
        made->rdma = true;
        *into = made->addresses.begin;
        s.regions[*into] = std::move(made);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, std::size_t size)
{
    return call(__func__, [&](state& s, guard& lock, std::string const& name) {
        auto const found = s.regions.find(address);
        if (found != s.regions.end() && (found->second->addresses.size != size || !found->second->mappings.empty())) {
            s.violate(name + " of a part, or of what is mapped");
            return CUDA_ERROR_INVALID_VALUE;
        }
        return free_region(s, lock, name, address, region_kind::reservation, CUDA_ERROR_INVALID_VALUE);
    });
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, std::size_t size, std::size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    return call(__func__, [&](state& s, guard&, std::string const& name) {
        auto const of = look_up(s, s.physicals, handle, name);
        auto const found = find_region(s, address);
        if (!of || !found || found->kind != region_kind::reservation || !found->addresses.holds({address, size}) ||
            address % granularity != 0 || size == 0 || size % granularity != 0 || size > of->file.size || offset != 0 ||
            flags != 0)
            return CUDA_ERROR_INVALID_VALUE;
        auto const at = address - found->addresses.begin;
        for (auto const& [start, mapped] : found->mappings)
            if (range{start, mapped.size}.meets({at, size}))
                return CUDA_ERROR_INVALID_VALUE;
        if (auto const error = device_error(s, of->device); error != CUDA_SUCCESS)
            return error;
        map(found->alias + at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, of->file.descriptor);
        found->mappings[at] = {.of = of, .size = size, .offset = 0, .access = {}};
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, std::size_t size)
{
    return call(__func__, [&](state& s, guard& lock, std::string const& name) {
        auto const found = find_region(s, address);
        if (!found || found->kind != region_kind::reservation || !found->addresses.holds({address, size}))
            return CUDA_ERROR_INVALID_VALUE;
        auto const mapped = mappings_of(*found, {address, size});
        if (mapped.empty()) {
            s.violate(name + " of what is not mapped, or of a part");
            return CUDA_ERROR_INVALID_VALUE;
        }
        auto const device = found->mappings.at(mapped.front()).of->device;
        if (check_unused(s, lock, {address, size}, name))
            wait_for_device(s, lock, device);
        auto const error = device_error(s, device);
        for (auto const at : mapped)
            found->mappings.erase(at);
        close_off(found->alias + (address - found->addresses.begin), size);
        return error;
    });
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, std::size_t size, CUmemAccessDesc const* wishes, std::size_t count)
{
    return call(__func__, [&](state& s, guard&, std::string const&) {
        auto const found = find_region(s, address);
        if (!found || found->kind != region_kind::reservation || !found->addresses.holds({address, size}) ||
            wishes == nullptr || count == 0)
            return CUDA_ERROR_INVALID_VALUE;
        auto const mapped = mappings_of(*found, {address, size});
        if (mapped.empty())
            return CUDA_ERROR_INVALID_VALUE;
        for (std::size_t i = 0; i < count; ++i) {
            auto const& [location, access] = wishes[i];
            if (!is_device(s, location))
                return CUDA_ERROR_INVALID_DEVICE;
            if (auto const error = device_error(s, location.id); error != CUDA_SUCCESS)
                return error;
            for (auto const at : mapped) {
                if (access == CU_MEM_ACCESS_FLAGS_PROT_NONE)
                    found->mappings.at(at).access.erase(location.id);
                else
                    found->mappings.at(at).access.insert(location.id);
            }
        }
        return CUDA_SUCCESS;
    });
}

}  // extern "C"
