// SPDX-License-Identifier: Apache-2.0
//
// The fake CUDA driver: devices and contexts.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "fake_cuda_state.hpp"

namespace fake_cuda::inside {

namespace {

template <class Body>
CUresult call_on_device(char const* function, CUdevice ordinal, Body body)
{
    return call(function, [&](state& s, guard& lock, std::string const&) {
        if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= s.devices.size())
            return CUDA_ERROR_INVALID_DEVICE;
        return body(s, lock, s.devices[static_cast<std::size_t>(ordinal)]);
    });
}

std::shared_ptr<context> make_context(state& s, int ordinal, bool primary)
{
    auto const made = std::make_shared<context>();
    made->handle = s.new_handle();
    made->device = ordinal;
    made->primary = primary;
    s.contexts[made->handle] = made;
    return made;
}

CUresult copy_text(char* into, int size, std::string const& text)
{
    if (into == nullptr || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    auto const fits = std::min(text.size(), static_cast<std::size_t>(size) - 1);
    std::memcpy(into, text.data(), fits);
    into[fits] = '\0';
    return CUDA_SUCCESS;
}

// The memory and events of a context, which go with it. Returns how many there were.
std::size_t drop_things(state& s, guard& lock, context const& of)
{
    std::vector<std::uint64_t> addresses;
    for (auto const& [address, region] : s.regions)
        if (region->context == of.handle)
            addresses.push_back(address);
    for (auto const address : addresses) {
        check_unused(s, lock, s.regions.at(address)->addresses, "the end of a context");
        drop_region(s, address);
    }
    auto const before = s.events.size();
    std::erase_if(s.events, [&](auto const& one) {
        auto const goes = one.second->of->handle == of.handle;
        if (goes)
            s.past_handles.insert(one.first);
        return goes;
    });
    return addresses.size() + before - s.events.size();
}

}  // namespace

bool device::has(CUdevice_attribute attribute) const
{
    auto const found = attributes.find(attribute);
    return found != attributes.end() && found->second != 0;
}

device default_device(int ordinal)
{
    device made;
    made.name = "NVIDIA H100 PCIe (fake)";
    made.memory_size = std::size_t{80} << 30;
    made.attributes = {{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
                       {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
                       {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
                       {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
                       {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fffffff},
                       {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
                       {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
                       {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
                       {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
                       {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
                       {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1755000},
                       {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
                       {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
                       {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
                       {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
                       {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0x17 + ordinal},
                       {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
                       {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
                       {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
                       {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
                       {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                       {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
                       {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
                       {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
                       {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
                       {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
                       {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
                       {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
                       {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
                       {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
                       {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1},
                       {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 1},
                       {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 200},
                       {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1},
                       {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 1}};
    return made;
}

std::shared_ptr<context> current_context(state& s, std::string const& name, CUresult& status)
{
    auto const& stack = context_stack();
    if (stack.empty()) {
        s.violate(name + " without a current context");
        status = CUDA_ERROR_INVALID_CONTEXT;
        return nullptr;
    }
    auto const found = s.contexts.find(stack.back());
    if (found != s.contexts.end())
        return found->second;
    s.violate(name + " in a context that was destroyed");
    status = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return nullptr;
}

void break_now(state& s, context& of, CUresult error)
{
    of.error = error;
    s.changed.notify_all();
}

void end_context(state& s, guard& lock, std::shared_ptr<context> of, bool complain)
{
    s.contexts.erase(of->handle);
    s.past_handles.insert(of->handle);
    of->ended = true;
    auto& owner = s.devices[static_cast<std::size_t>(of->device)];
    if (owner.primary == of) {
        owner.primary = nullptr;
        owner.retained = 0;
    }
    std::vector<std::shared_ptr<stream>> ending;
    bool at_work = false;
    std::size_t things = 0;
    for (auto const& [handle, stream] : s.streams) {
        if (stream->of != of)
            continue;
        ending.push_back(stream);
        at_work = at_work || !stream->idle();
        things += stream->is_default || stream->destroyed ? 0 : 1;
    }
    end_streams(s, lock, ending);
    things += drop_things(s, lock, *of);
    if (complain && at_work && of->error == CUDA_SUCCESS)
        s.violate("a context ended with work in its streams");
    if (complain && things > 0)
        s.violate("a context ended with " + std::to_string(things) + " streams, events or allocations");
}

}  // namespace fake_cuda::inside

using namespace fake_cuda::inside;

extern "C" {

CUresult CUDAAPI cuInit(unsigned flags)
{
    auto const body = [&](state& s, guard&, std::string const&) {
        if (flags != 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (s.devices.empty())
            return CUDA_ERROR_NO_DEVICE;
        s.initialised = true;
        return CUDA_SUCCESS;
    };
    return call(__func__, body, false);
}

CUresult CUDAAPI cuDriverGetVersion(int* version)
{
    auto const body = [&](state& s, guard&, std::string const&) {
        if (version == nullptr)
            return CUDA_ERROR_INVALID_VALUE;
        *version = s.version;
        return CUDA_SUCCESS;
    };
    return call(__func__, body, false);
}

CUresult CUDAAPI cuDeviceGet(CUdevice* found, int ordinal)
{
    return call_on_device(__func__, ordinal, [&](state&, guard&, device&) {
        *found = ordinal;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuDeviceGetCount(int* count)
{
    return call(__func__, [&](state& s, guard&, std::string const&) {
        *count = static_cast<int>(s.devices.size());
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuDeviceGetName(char* name, int size, CUdevice ordinal)
{
    return call_on_device(__func__, ordinal,
                          [&](state&, guard&, device& of) { return copy_text(name, size, of.name); });
}

CUresult CUDAAPI cuDeviceTotalMem(std::size_t* bytes, CUdevice ordinal)
{
    return call_on_device(__func__, ordinal, [&](state&, guard&, device& of) {
        *bytes = of.memory_size;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* id, int size, CUdevice ordinal)
{
    return call_on_device(__func__, ordinal, [&](state&, guard&, device& of) {
        char text[32];
        std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", of.attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID],
                      of.attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID], of.attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID]);
        return copy_text(id, size, text);
    });
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal)
{
    return call_on_device(__func__, ordinal, [&](state&, guard&, device& of) {
        auto const found = of.attributes.find(attribute);
        if (found == of.attributes.end() && (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX))
            return CUDA_ERROR_INVALID_VALUE;
        *value = found == of.attributes.end() ? 0 : found->second;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* into, CUdevice ordinal)
{
    return call_on_device(__func__, ordinal, [&](state& s, guard&, device& of) {
        if (!of.primary)
            of.primary = make_context(s, ordinal, true);
        ++of.retained;
        *into = handle_of<CUcontext>(of.primary->handle);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
    return call_on_device(__func__, ordinal, [&](state& s, guard& lock, device& of) {
        if (of.retained == 0) {
            s.violate("cuDevicePrimaryCtxRelease without a retain");
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (--of.retained == 0)
            end_context(s, lock, of.primary, true);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuCtxCreate(CUcontext* into, CUctxCreateParams* /*parameters*/, unsigned /*flags*/, CUdevice ordinal)
{
    return call_on_device(__func__, ordinal, [&](state& s, guard&, device&) {
        auto const made = make_context(s, ordinal, false)->handle;
        context_stack().push_back(made);
        *into = handle_of<CUcontext>(made);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuCtxDestroy(CUcontext handle)
{
    return call(__func__, [&](state& s, guard& lock, std::string const& name) {
        auto const found = look_up(s, s.contexts, handle, name);
        if (!found || found->primary)
            return CUDA_ERROR_INVALID_CONTEXT;
        if (auto& stack = context_stack(); !stack.empty() && stack.back() == found->handle)
            stack.pop_back();
        end_context(s, lock, found, true);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle)
{
    return call(__func__, [&](state& s, guard&, std::string const& name) {
        if (!look_up(s, s.contexts, handle, name))
            return CUDA_ERROR_INVALID_CONTEXT;
        context_stack().push_back(number_of(handle));
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* into)
{
    return call(__func__, [&](state& s, guard&, std::string const& name) {
        auto& stack = context_stack();
        if (stack.empty()) {
            s.violate(name + " without a current context");
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (into != nullptr)
            *into = handle_of<CUcontext>(stack.back());
        stack.pop_back();
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle)
{
    return call(__func__, [&](state& s, guard&, std::string const& name) {
        if (handle != nullptr && !look_up(s, s.contexts, handle, name))
            return CUDA_ERROR_INVALID_CONTEXT;
        auto& stack = context_stack();
        if (!stack.empty())
            stack.pop_back();
        if (handle != nullptr)
            stack.push_back(number_of(handle));
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* into)
{
    return call(__func__, [&](auto&&...) {
        auto const& stack = context_stack();
        *into = stack.empty() ? nullptr : handle_of<CUcontext>(stack.back());
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* into)
{
    auto const body = [&](state&, guard&, std::string const&, std::shared_ptr<context> const& current) {
        *into = current->device;
        return CUDA_SUCCESS;
    };
    return call_in_context(__func__, body);
}

CUresult CUDAAPI cuCtxSynchronize()
{
    auto const body = [](state& s, guard& lock, std::string const& name, std::shared_ptr<context> const& current) {
        auto status = CUDA_SUCCESS;
        for (auto const& [handle, stream] : s.streams)
            if (stream->of == current && stream->captured != capture::none)
                status = spoil_capture(s, name, *stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        return status == CUDA_SUCCESS ? wait_for_all(s, lock, current) : status;
    };
    return call_in_context(__func__, body);
}

// The host's view of the write order needs nothing done to it.
CUresult CUDAAPI cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                            CUflushGPUDirectRDMAWritesScope scope)
{
    auto const body = [&](state& s, guard&, std::string const&, std::shared_ptr<context> const& current) {
        if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
            (scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER &&
             scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES))
            return CUDA_ERROR_INVALID_VALUE;
        auto& attributes = s.devices[static_cast<std::size_t>(current->device)].attributes;
        auto const options = attributes[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS];
        return (options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    };
    return call_in_context(__func__, body);
}

}  // extern "C"
