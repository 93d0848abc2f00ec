// SPDX-License-Identifier: Apache-2.0
//
// The fake CUDA driver's memory: where it is, and the functions that allocate and free it. Virtual memory is in
// fake_cuda_virtual.cpp; what asks about addresses, and exports them, in fake_cuda_pointer.cpp.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "fake_cuda_state.hpp"

namespace fake_cuda::inside {

namespace {

// Of address ranges that were freed; so long nothing else gets their addresses.
constexpr std::size_t remembered = 4096;

std::size_t round_up(std::size_t size, std::size_t to)
{
    return (size + to - 1) / to * to;
}

}  // namespace

std::size_t page_size()
{
    static auto const size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return size;
}

void* map(void* at, std::size_t size, int protection, int flags, int descriptor)
{
    auto* const mapped = ::mmap(at, size, protection, flags, descriptor, 0);
    if (mapped == MAP_FAILED)
        throw std::system_error{errno, std::generic_category(), "fake_cuda: mmap"};
    return mapped;
}

std::byte* reserve(std::size_t size, std::size_t alignment)
{
    auto const extra = alignment > page_size() ? alignment : 0;
    auto* const start =
        static_cast<std::byte*>(map(nullptr, size + extra, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE));
    if (extra == 0)
        return start;
    auto const skip =
        round_up(reinterpret_cast<std::uintptr_t>(start), alignment) - reinterpret_cast<std::uintptr_t>(start);
    if (skip > 0)
        ::munmap(start, skip);
    if (skip < extra)
        ::munmap(start + skip + size, extra - skip);
    return start + skip;
}

void close_off(void* at, std::size_t size)
{
    map(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED);
}

std::uint64_t address_of(void const* pointer)
{
    return reinterpret_cast<std::uint64_t>(pointer);
}

bool fits(state& s, int ordinal, std::size_t size)
{
    auto const& device = s.devices[static_cast<std::size_t>(ordinal)];
    return size <= device.memory_size && device.memory_used <= device.memory_size - size;
}

CUresult free_region(state& s, guard& lock, std::string const& name, std::uint64_t address, region_kind kind,
                     CUresult if_unknown)
{
    auto const found = s.regions.find(address);
    if (found == s.regions.end() || found->second->kind != kind) {
        s.violate(name + " of an address that is not one of such memory");
        return if_unknown;
    }
    auto const device = found->second->device;
    // Queued work that uses the memory is told of, and not waited for: the caller may be the one to let it go.
    if (check_unused(s, lock, found->second->addresses, name) && kind != region_kind::reservation)
        wait_for_device(s, lock, device);
    if (!s.regions.contains(address))
        return if_unknown;  // freed meanwhile
    drop_region(s, address);
    return CUDA_SUCCESS;
}

memory_file::memory_file(std::size_t bytes)
    : descriptor{::memfd_create("fake_cuda", MFD_CLOEXEC | MFD_ALLOW_SEALING)}, size{round_up(bytes, page_size())}
{
    if (descriptor < 0 || ::ftruncate(descriptor, static_cast<::off_t>(size)) != 0 ||
        ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        throw std::system_error{errno, std::generic_category(), "fake_cuda: memory file"};
}

memory_file::~memory_file()
{
    ::close(descriptor);
}

charge::charge(state& s, int device, std::size_t bytes) : state_{s}, device_{device}, bytes_{bytes}
{
    s.devices[static_cast<std::size_t>(device)].memory_used += bytes;
}

charge::~charge()
{
    if (static_cast<std::size_t>(device_) < state_.devices.size())
        state_.devices[static_cast<std::size_t>(device_)].memory_used -= bytes_;
}

std::shared_ptr<region> find_region(state& s, std::uint64_t address)
{
    auto after = s.regions.upper_bound(address);
    if (after == s.regions.begin())
        return nullptr;
    auto const& found = std::prev(after)->second;
    return found->addresses.holds({address, 1}) ? found : nullptr;
}

std::byte* translate(state& s, range const& addresses, reader who)
{
    auto const found = find_region(s, addresses.begin);
    if (!found || !found->addresses.holds(addresses))
        return nullptr;
    auto const offset = addresses.begin - found->addresses.begin;
    if (found->kind == region_kind::device && who.is == reader::kind::kernel && found->context != who.in->handle)
        return nullptr;
    if (found->kind == region_kind::reservation) {
        for (auto at = offset; at < offset + addresses.size;) {
            auto const after = found->mappings.upper_bound(at);
            if (after == found->mappings.begin())
                return nullptr;
            auto const& [start, mapped] = *std::prev(after);
            auto const open =
                who.is == reader::kind::test ||
                (who.is == reader::kind::copy ? !mapped.access.empty() : mapped.access.contains(who.in->device));
            if (at >= start + mapped.size || !open)
                return nullptr;
            at = start + mapped.size;
        }
    }
    return found->alias + offset;
}

bool is_known(state& s, std::uint64_t address)
{
    return find_region(s, address) != nullptr || std::ranges::any_of(s.past_addresses, [&](range const& past) {
               return past.holds({address, 1});
           });
}

void drop_region(state& s, std::uint64_t address)
{
    auto const found = s.regions.at(address);
    s.regions.erase(address);
    if (found->kind == region_kind::registered)
        return;
    auto const size = round_up(found->addresses.size, page_size());
    if (found->kind == region_kind::host)
        close_off(found->alias, size);
    else
        ::munmap(found->alias, size);
    s.past_addresses.push_back({address, size});
    if (s.past_addresses.size() > remembered) {
        auto const oldest = s.past_addresses.front();
        s.past_addresses.pop_front();
        ::munmap(reinterpret_cast<void*>(oldest.begin), oldest.size);
    }
}

bool check_unused(state& s, guard& lock, range addresses, std::string const& name)
{
    auto const meets = [&](range const& used) { return used.meets(addresses); };
    auto const streams = s.streams;
    auto const mistakes = s.violations.size();
    for (auto const& [handle, stream] : streams) {
        if (std::ranges::any_of(stream->in_use, meets)) {
            s.violate(name + " of memory that work under way uses");
            s.changed.wait(lock, [&, &on = *stream] { return std::ranges::none_of(on.in_use, meets); });
        }
        if (stream->of->error != CUDA_SUCCESS)
            continue;
        auto const uses = [&](operation const& op) { return op.uses && std::ranges::any_of(op.uses(), meets); };
        if (std::ranges::any_of(stream->queue, uses))
            s.violate(name + " of memory that queued work uses");
    }
    return s.violations.size() == mistakes;
}

}  // namespace fake_cuda::inside

using namespace fake_cuda::inside;
using context_pointer = std::shared_ptr<context>;

extern "C" {

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* into, std::size_t size)
{
    auto const body = [&](state& s, guard&, std::string const&, context_pointer const& current) {
        if (into == nullptr || size == 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (!fits(s, current->device, size))
            return CUDA_ERROR_OUT_OF_MEMORY;
        auto made = std::make_shared<region>();
        made->file = std::make_unique<memory_file>(size);
        made->charged = std::make_unique<charge>(s, current->device, size);
        made->addresses = {address_of(reserve(made->file->size, page_size())), size};
        made->alias = static_cast<std::byte*>(
            map(nullptr, made->file->size, PROT_READ | PROT_WRITE, MAP_SHARED, made->file->descriptor));
        made->device = current->device;
        made->context = current->handle;
        made->rdma = true;
        *into = made->addresses.begin;
        s.regions[*into] = std::move(made);
        return CUDA_SUCCESS;
    };
    return call_in_context(__func__, body);
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address)
{
    auto const body = [&](state& s, guard& lock, std::string const& name, context_pointer const&) {
        return address == 0 ? CUDA_SUCCESS
                            : free_region(s, lock, name, address, region_kind::device, CUDA_ERROR_INVALID_VALUE);
    };
    return call_in_context(__func__, body, true);
}

CUresult CUDAAPI cuMemHostAlloc(void** into, std::size_t size, unsigned flags)
{
    auto const body = [&](state& s, guard&, std::string const&, context_pointer const& current) {
        constexpr unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
        if (into == nullptr || size == 0 || (flags & ~known) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        std::this_thread::sleep_for(s.pinning);  // under the driver's lock, as a driver does it
        auto made = std::make_shared<region>();
        made->kind = region_kind::host;
        made->file = std::make_unique<memory_file>(size);
        *into = map(nullptr, made->file->size, PROT_READ | PROT_WRITE, MAP_SHARED, made->file->descriptor);
        made->alias = static_cast<std::byte*>(*into);
        made->addresses = {address_of(*into), size};
        made->device = current->device;
        made->context = current->handle;
        s.regions[made->addresses.begin] = std::move(made);
        return CUDA_SUCCESS;
    };
    return call_in_context(__func__, body);
}

CUresult CUDAAPI cuMemFreeHost(void* pointer)
{
    auto const body = [&](state& s, guard& lock, std::string const& name, context_pointer const&) {
        return free_region(s, lock, name, address_of(pointer), region_kind::host, CUDA_ERROR_INVALID_VALUE);
    };
    return call_in_context(__func__, body, true);
}

CUresult CUDAAPI cuMemHostRegister(void* pointer, std::size_t size, unsigned /*flags*/)
{
    auto const body = [&](state& s, guard&, std::string const&, context_pointer const& current) {
        range const addresses{address_of(pointer), size};
        if (pointer == nullptr || size == 0)
            return CUDA_ERROR_INVALID_VALUE;
        auto const meets = [&](auto const& one) { return one.second->addresses.meets(addresses); };
        if (std::ranges::any_of(s.regions, meets))
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        auto made = std::make_shared<region>();
        made->kind = region_kind::registered;
        made->addresses = addresses;
        made->alias = static_cast<std::byte*>(pointer);
        made->device = current->device;
        made->context = current->handle;
        s.regions[addresses.begin] = std::move(made);
        return CUDA_SUCCESS;
    };
    return call_in_context(__func__, body);
}

CUresult CUDAAPI cuMemHostUnregister(void* pointer)
{
    auto const body = [&](state& s, guard& lock, std::string const& name, context_pointer const&) {
        return free_region(s, lock, name, address_of(pointer), region_kind::registered,
                           CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    };
    return call_in_context(__func__, body, true);
}

}  // extern "C"
