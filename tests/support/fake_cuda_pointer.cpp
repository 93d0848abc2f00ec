// SPDX-License-Identifier: Apache-2.0
//
// The fake CUDA driver: what an address is, and exports of memory as dmabuf.
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "fake_cuda_state.hpp"

namespace fake_cuda::inside {

namespace {

// Its mapping, if it lies in one.
mapping const* mapping_at(region const& in, std::uint64_t address)
{
    auto const offset = address - in.addresses.begin;
    auto const after = in.mappings.upper_bound(offset);
    if (after == in.mappings.begin())
        return nullptr;
    auto const& [start, found] = *std::prev(after);
    return offset - start < found.size ? &found : nullptr;
}

// The range that a mapping or an allocation has.
range extent(region const& in, std::uint64_t address)
{
    if (in.kind != region_kind::reservation)
        return in.addresses;
    auto const after = in.mappings.upper_bound(address - in.addresses.begin);
    auto const& [start, found] = *std::prev(after);
    return {in.addresses.begin + start, found.size};
}

template <class T>
CUresult put(void* into, T value)
{
    std::memcpy(into, &value, sizeof value);
    return CUDA_SUCCESS;
}

CUresult put_bool(void* into, bool value)
{
    return put(into, value ? 1U : 0U);
}

bool on_host(region const& what)
{
    return what.kind == region_kind::host || what.kind == region_kind::registered;
}

bool rdma_capable(region const& what, mapping const* mapped)
{
    return what.rdma && !on_host(what) && !what.managed && !what.from_pool && (mapped == nullptr || mapped->of->rdma);
}

// Whether kernels in the current context reach it.
bool is_in_reach(state& s, region const& what, mapping const* mapped)
{
    auto const& stack = context_stack();
    auto const current = stack.empty() ? s.contexts.end() : s.contexts.find(stack.back());
    if (current == s.contexts.end())
        return false;
    if (mapped != nullptr)
        return mapped->access.contains(current->second->device);
    return on_host(what) || what.context == current->first;
}

// Attributes that need memory behind the address.
CUresult describe_mapped(state& s, region const& what, mapping const* mapped, std::uint64_t address,
                         CUpointer_attribute attribute, void* into)
{
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return put(into, handle_of<CUcontext>(what.context));  // null for mappings, as they belong to no context
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return put(into, on_host(what) ? unsigned{CU_MEMORYTYPE_HOST} : unsigned{CU_MEMORYTYPE_DEVICE});
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            return s.pointers_told || is_in_reach(s, what, mapped) ? put(into, CUdeviceptr{address})
                                                                   : CUDA_ERROR_INVALID_VALUE;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            return on_host(what) || what.managed ? put(into, reinterpret_cast<void*>(address))
                                                 : CUDA_ERROR_INVALID_VALUE;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return put(into, mapped != nullptr ? mapped->of->device : what.device);
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
            return put_bool(into, rdma_capable(what, mapped));
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            return put_bool(into, what.sync_memops);
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
            return put(into, CUdeviceptr{extent(what, address).begin});
        case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
            return put(into, std::size_t{extent(what, address).size});
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult describe(state& s, std::uint64_t address, CUpointer_attribute attribute, void* into)
{
    auto const found = find_region(s, address);
    if (!found || into == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    auto const* const mapped = mapping_at(*found, address);
    auto const has_memory = found->kind != region_kind::reservation || mapped != nullptr;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return put(into, CUdeviceptr{found->addresses.begin});
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return put(into, std::size_t{found->addresses.size});
        case CU_POINTER_ATTRIBUTE_MAPPED:
            return put_bool(into, has_memory);
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return put_bool(into, found->managed);
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            return put(into, found->from_pool ? handle_of<CUmemoryPool>(found->addresses.begin) : nullptr);
        default:
            return has_memory ? describe_mapped(s, *found, mapped, address, attribute, into) : CUDA_ERROR_INVALID_VALUE;
    }
}

// What cuPointerGetAttributes says of memory that CUDA does not know.
void put_nothing(CUpointer_attribute attribute, void* into)
{
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            put(into, int{CU_DEVICE_INVALID});
            break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_MAPPED:
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            put(into, 0U);
            break;
        default:
            put(into, std::uint64_t{0});
    }
}

// Bytes of one file that are a part of an export.
struct part {
    memory_file const* file = nullptr;
    std::size_t offset = 0;
    std::size_t size = 0;
};

// A dmabuf of the parts in a row, where the kernel can make one of files in memory.
int make_dmabuf(std::vector<part> const& parts)
{
    auto const device = ::open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
    if (device < 0)
        return -1;
    std::vector<std::byte> wish(sizeof(udmabuf_create_list) + parts.size() * sizeof(udmabuf_create_item));
    udmabuf_create_list const head{.flags = UDMABUF_FLAGS_CLOEXEC, .count = static_cast<__u32>(parts.size())};
    std::memcpy(wish.data(), &head, sizeof head);
    for (std::size_t i = 0; i < parts.size(); ++i) {
        udmabuf_create_item item{};
        item.memfd = static_cast<__u32>(parts[i].file->descriptor);
        item.offset = parts[i].offset;
        item.size = parts[i].size;
        std::memcpy(&wish[sizeof head + i * sizeof item], &item, sizeof item);
    }
    auto const made = ::ioctl(device, UDMABUF_CREATE_LIST, wish.data());
    ::close(device);
    return made;
}

// Where there is no dmabuf: the file that all of it is in, or one of the size that shares no bytes with any.
int make_stand_in(std::vector<part> const& parts, std::size_t size)
{
    if (parts.size() == 1)
        return ::fcntl(parts[0].file->descriptor, F_DUPFD_CLOEXEC, 0);
    memory_file const several{size};
    return ::fcntl(several.descriptor, F_DUPFD_CLOEXEC, 0);
}

CUresult export_parts(state& s, std::vector<part> const& parts, exported_range about, bool attaches, int* into)
{
    auto descriptor = attaches ? make_dmabuf(parts) : -1;
    if (descriptor < 0) {
        about.offset = parts.size() == 1 ? parts[0].offset : 0;
        descriptor = make_stand_in(parts, about.size);
    }
    struct stat identity {};
    if (descriptor < 0 || ::fstat(descriptor, &identity) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    s.exports[{identity.st_dev, identity.st_ino}] = about;
    *into = descriptor;
    return CUDA_SUCCESS;
}

CUresult check_export(device const& of, region const& what, unsigned long long flags)
{
    if ((flags & ~static_cast<unsigned long long>(CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags != 0 && !of.pcie_mapping)
        return CUDA_ERROR_NOT_SUPPORTED;
    return of.has(on_host(what) ? CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED
                                : CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)
               ? CUDA_SUCCESS
               : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult export_range(state& s, range const& addresses, unsigned long long flags, int* into)
{
    static auto const page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    auto const found = find_region(s, addresses.begin);
    if (into == nullptr || addresses.size == 0 || addresses.begin % page != 0 || addresses.size % page != 0 || !found ||
        !found->addresses.holds(addresses) || found->kind == region_kind::registered)
        return CUDA_ERROR_INVALID_VALUE;
    if (found->kind == region_kind::reservation && translate(s, addresses, {reader::kind::test}) == nullptr)
        return CUDA_ERROR_INVALID_VALUE;
    auto const* const first = mapping_at(*found, addresses.begin);
    auto const ordinal = first != nullptr ? first->of->device : found->device;
    auto const& of = s.devices[static_cast<std::size_t>(ordinal)];
    if (auto const status = check_export(of, *found, flags); status != CUDA_SUCCESS)
        return status;
    std::vector<part> parts;
    for (auto at = addresses.begin; at < addresses.begin + addresses.size;) {
        auto const* const mapped = mapping_at(*found, at);
        if (!on_host(*found) && (!rdma_capable(*found, mapped) || (mapped != nullptr && mapped->of->device != ordinal)))
            return CUDA_ERROR_INVALID_VALUE;
        auto const whole = extent(*found, at);
        auto const size = std::min(whole.begin + whole.size, addresses.begin + addresses.size) - at;
        parts.push_back({mapped != nullptr ? &mapped->of->file : found->file.get(), at - whole.begin, size});
        at += size;
    }
    return export_parts(s, parts, {addresses.begin, addresses.size, 0, flags}, flags == 0 || of.pcie_attaches, into);
}

}  // namespace

}  // namespace fake_cuda::inside

using namespace fake_cuda::inside;
using context_pointer = std::shared_ptr<context>;

extern "C" {

CUresult CUDAAPI cuPointerGetAttribute(void* into, CUpointer_attribute attribute, CUdeviceptr address)
{
    return call(__func__, [&](state& s, guard&, std::string const&) { return describe(s, address, attribute, into); });
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** into,
                                        CUdeviceptr address)
{
    return call(__func__, [&](state& s, guard&, std::string const&) {
        if (count == 0 || attributes == nullptr || into == nullptr)
            return CUDA_ERROR_INVALID_VALUE;
        for (unsigned i = 0; i < count; ++i)
            if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER && context_stack().empty())
                return CUDA_ERROR_INVALID_CONTEXT;
        for (unsigned i = 0; i < count; ++i)
            if (describe(s, address, attributes[i], into[i]) != CUDA_SUCCESS)
                put_nothing(attributes[i], into[i]);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuPointerSetAttribute(void const* value, CUpointer_attribute attribute, CUdeviceptr address)
{
    return call(__func__, [&](state& s, guard&, std::string const&) {
        auto const found = find_region(s, address);
        if (!found || value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
            return CUDA_ERROR_INVALID_VALUE;
        unsigned flag = 0;
        std::memcpy(&flag, value, sizeof flag);
        found->sync_memops = flag != 0;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* start, std::size_t* size, CUdeviceptr address)
{
    auto const body = [&](state& s, guard&, std::string const&, context_pointer const&) {
        auto const found = find_region(s, address);
        if (!found || (found->kind == region_kind::reservation && mapping_at(*found, address) == nullptr))
            return CUDA_ERROR_NOT_FOUND;
        auto const whole = extent(*found, address);
        if (start != nullptr)
            *start = whole.begin;
        if (size != nullptr)
            *size = whole.size;
        return CUDA_SUCCESS;
    };
    return call_in_context(__func__, body);
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* into, void* pointer, unsigned flags)
{
    auto const body = [&](state& s, guard&, std::string const&, context_pointer const&) {
        auto const address = reinterpret_cast<std::uint64_t>(pointer);
        auto const found = find_region(s, address);
        if (into == nullptr || flags != 0 || !found || !on_host(*found))
            return CUDA_ERROR_INVALID_VALUE;
        *into = address;
        return CUDA_SUCCESS;
    };
    return call_in_context(__func__, body);
}

CUresult CUDAAPI cuMemGetHandleForAddressRange(void* into, CUdeviceptr address, std::size_t size,
                                               CUmemRangeHandleType type, unsigned long long flags)
{
    auto const body = [&](state& s, guard&, std::string const&, context_pointer const&) {
        if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)
            return CUDA_ERROR_INVALID_VALUE;
        return export_range(s, {address, size}, flags, static_cast<int*>(into));
    };
    return call_in_context(__func__, body);
}

}  // extern "C"
