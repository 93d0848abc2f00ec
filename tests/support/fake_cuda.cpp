// SPDX-License-Identifier: Apache-2.0
//
// The fake CUDA driver's state, the hooks for tests, and the functions that need no device.
#include "fake_cuda.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <stdexcept>

#include "fake_cuda_state.hpp"

namespace fake_cuda::inside {

namespace {

// No address of user space: a handle that is followed as a pointer ends the program.
constexpr number first_handle = 0xfa4e'0000'0000'0000;

// When the process ends, so do the threads; calls that come later find the driver gone, as with the real one.
struct at_exit {
    ~at_exit()
    {
        set_now_gone();
        auto& s = all();
        guard lock{s.mutex};
        std::vector<std::shared_ptr<stream>> ending;
        for (auto const& [handle, stream] : s.streams)
            ending.push_back(stream);
        end_streams(s, lock, ending);
        for (auto const& violation : s.violations)
            std::fprintf(stderr, "fake CUDA: at the end of the program: %s\n", violation.c_str());
        if (!s.violations.empty()) {
            std::fflush(stdout);
            ::_exit(1);
        }
    }
};

at_exit const ends_threads;

void drop_everything(state& s, guard& lock)
{
    auto const contexts = s.contexts;
    for (auto const& [handle, context] : contexts)
        end_context(s, lock, context, false);
    while (!s.regions.empty())
        drop_region(s, s.regions.begin()->first);
    s.physicals.clear();
    s.exports.clear();
    s.libraries.clear();
    s.needed_versions.clear();
    s.kernels.clear();
    s.events.clear();
    s.graphs.clear();
    s.executable_graphs.clear();
    context_stack().clear();
}

void set_defaults(state& s)
{
    s.gone = false;
    s.version = 13000;
    s.calls_when_gone = 0;
    s.calls.clear();
    s.calls_by_thread.clear();
    s.calls_by_stream.clear();
    s.failures.clear();
    s.all_held = false;
    s.capture_elsewhere = false;
    s.loading_waits = true;
    s.pointers_told = false;
    s.delay = {};
    s.pinning = default_pinning;
    s.stalled.clear();
    s.written = 0;
    for (std::size_t i = 0; i < s.devices.size(); ++i) {
        auto fresh = default_device(static_cast<int>(i));
        auto& old = s.devices[i];
        old.attributes.swap(fresh.attributes);
        old.name.swap(fresh.name);
        old.memory_size = fresh.memory_size;
        old.pcie_mapping = fresh.pcie_mapping;
        old.pcie_attaches = fresh.pcie_attaches;
    }
    for (auto const& [handle, stream] : s.streams) {
        stream->held = false;
        stream->captured = capture::none;
        stream->nodes.clear();
    }
    s.changed.notify_all();
}

void make_devices(state& s, int count)
{
    s.devices.clear();
    for (int i = 0; i < count; ++i)
        s.devices.push_back(default_device(i));
}

}  // namespace

state::state() : next_handle{first_handle}
{
    make_devices(*this, 2);
}

state& all()
{
    static auto* const only = new state;
    return *only;
}

context_list& context_stack()
{
    thread_local constinit context_list stack;
    return stack;
}

CUstreamCaptureMode& capture_mode()
{
    thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return mode;
}

bool& in_host_function()
{
    thread_local bool inside = false;
    return inside;
}

bool& in_call() noexcept
{
    thread_local bool inside = false;
    return inside;
}

std::string plain_name(std::string name)
{
    auto const at = name.rfind("_v");
    if (at != std::string::npos && at + 3 == name.size())
        name.resize(at);
    return name;
}

void abort_of_handle(state const& s, std::string const& name, number handle)
{
    auto const stream = s.streams.find(handle);
    auto const was_one = s.given_up.contains(handle) || (stream != s.streams.end() && stream->second->destroyed);
    auto const* const what = was_one ? "a handle that was given up before" : "what is no handle";
    std::fprintf(stderr, "fake CUDA: %s with %s (%#" PRIx64 "): a driver would crash here\n", name.c_str(), what,
                 handle);
    std::abort();
}

CUresult begin_call(state& s, std::string const& name, bool needs_init)
{
    ++s.calls[name];
    ++s.calls_by_thread[std::this_thread::get_id()][name];
    if (s.gone) {
        ++s.calls_when_gone;
        return CUDA_ERROR_DEINITIALIZED;
    }
    if (in_host_function()) {
        s.violate(name + " in a host function");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (auto const rule = s.failures.find(name); rule != s.failures.end() && rule->second.is_for_this_thread()) {
        auto& [error, after, times, only] = rule->second;
        if (after > 0) {
            --after;
        } else if (times > 0) {
            --times;
            return error;
        }
    }
    static std::set<std::string> const minds{"cuEventQuery", "cuStreamSynchronize", "cuCtxSynchronize", "cuMemAlloc",
                                             "cuMemFree",    "cuMemHostAlloc",      "cuMemcpyDtoH"};
    if (capture_mode() != CU_STREAM_CAPTURE_MODE_RELAXED && minds.contains(name)) {
        if (s.capture_elsewhere) {
            s.violate(name + " while another thread captures");
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        for (auto const& [handle, stream] : s.streams)
            if (stream->captured == capture::active)
                return spoil_capture(s, name, *stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    return needs_init && !s.initialised ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

}  // namespace fake_cuda::inside

namespace fake_cuda {

using namespace inside;

namespace {

template <class Body>
auto with_state(Body body)
{
    auto& s = all();
    guard lock{s.mutex};
    return body(s, lock);
}

void change_region(CUdeviceptr address, bool region::*what, bool value)
{
    with_state([&](state& s, guard&) {
        auto const region = find_region(s, address);
        if (!region)
            throw std::out_of_range{"fake_cuda: no allocation at this address"};
        (*region).*what = value;
    });
}

std::shared_ptr<stream> stream_for_hook(state& s, CUstream handle)
{
    // Before find_stream: it may be destroyed, and still at work.
    if (auto const found = s.streams.find(number_of(handle)); found != s.streams.end())
        return found->second;
    auto const& stack = context_stack();
    auto const current = stack.empty() ? s.contexts.end() : s.contexts.find(stack.back());
    auto const found = find_stream(s, handle, current == s.contexts.end() ? nullptr : current->second, "a hook");
    if (!found)
        throw std::out_of_range{"fake_cuda: no such stream"};
    return found;
}

}  // namespace

void reset()
{
    with_state([](state& s, guard& lock) {
        drop_everything(s, lock);
        make_devices(s, 2);
        set_defaults(s);
    });
}

void reset_settings()
{
    with_state([](state& s, guard&) { set_defaults(s); });
}

void set_initialised(bool initialised)
{
    with_state([&](state& s, guard&) { s.initialised = initialised; });
}

void set_devices(int count)
{
    with_state([&](state& s, guard&) {
        if (!s.contexts.empty())
            throw std::logic_error{"fake_cuda: devices are in use"};
        make_devices(s, count);
    });
}

void set_attribute(int device, CUdevice_attribute attribute, int value)
{
    with_state([&](state& s, guard&) { s.devices.at(static_cast<std::size_t>(device)).attributes[attribute] = value; });
}

void set_name(int device, std::string name)
{
    with_state([&](state& s, guard&) { s.devices.at(static_cast<std::size_t>(device)).name = std::move(name); });
}

void set_memory_size(int device, std::size_t bytes)
{
    with_state([&](state& s, guard&) { s.devices.at(static_cast<std::size_t>(device)).memory_size = bytes; });
}

void set_driver_version(int version)
{
    with_state([&](state& s, guard&) { s.version = version; });
}

void set_pcie_mapping(int device, bool supported)
{
    with_state([&](state& s, guard&) { s.devices.at(static_cast<std::size_t>(device)).pcie_mapping = supported; });
}

void set_pcie_attaches(int device, bool attaches)
{
    with_state([&](state& s, guard&) { s.devices.at(static_cast<std::size_t>(device)).pcie_attaches = attaches; });
}

void set_pointers_told(bool told)
{
    with_state([&](state& s, guard&) { s.pointers_told = told; });
}

std::byte* bytes_at(CUdeviceptr address, std::size_t size)
{
    return with_state([&](state& s, guard&) {
        auto* const found = translate(s, {address, size}, {reader::kind::test});
        if (found == nullptr)
            throw std::out_of_range{"fake_cuda: no memory at these addresses"};
        return found;
    });
}

void set_managed(CUdeviceptr address, bool managed)
{
    change_region(address, &region::managed, managed);
}

void set_from_pool(CUdeviceptr address, bool from_pool)
{
    change_region(address, &region::from_pool, from_pool);
}

void set_rdma_capable(CUdeviceptr address, bool capable)
{
    change_region(address, &region::rdma, capable);
}

std::optional<exported_range> find_export(int descriptor)
{
    struct stat about {};
    if (::fstat(descriptor, &about) != 0)
        return std::nullopt;
    return with_state([&](state& s, guard&) -> std::optional<exported_range> {
        auto const found = s.exports.find({about.st_dev, about.st_ino});
        return found == s.exports.end() ? std::nullopt : std::optional{found->second};
    });
}

void hold(CUstream stream)
{
    with_state([&](state& s, guard& lock) {
        auto const found = stream_for_hook(s, stream);
        found->held = true;
        if (found->thread.get_id() != std::this_thread::get_id())
            s.changed.wait(lock, [&] { return !found->busy; });
    });
}

void set_captured(CUstream stream, bool captured)
{
    with_state([&](state& s, guard&) {
        auto const found = stream_for_hook(s, stream);
        found->captured = captured ? capture::active : capture::none;
        found->nodes.clear();
    });
}

void set_loading_waits(bool waits)
{
    with_state([&](state& s, guard&) { s.loading_waits = waits; });
}

void stall(std::string const& function)
{
    with_state([&](state& s, guard&) { s.stalled.insert(plain_name(function)); });
}

void go_on(std::string const& function)
{
    with_state([&](state& s, guard&) {
        s.stalled.erase(plain_name(function));
        s.changed.notify_all();
    });
}

void set_capture_elsewhere(bool captures)
{
    with_state([&](state& s, guard&) { s.capture_elsewhere = captures; });
}

void let_go(CUstream stream)
{
    with_state([&](state& s, guard&) {
        stream_for_hook(s, stream)->held = false;
        s.changed.notify_all();
    });
}

void hold_all()
{
    with_state([](state& s, guard& lock) {
        s.all_held = true;
        auto const self = std::this_thread::get_id();
        s.changed.wait(lock, [&] {
            return std::ranges::none_of(
                s.streams, [&](auto const& one) { return one.second->busy && one.second->thread.get_id() != self; });
        });
    });
}

void let_go_all()
{
    with_state([](state& s, guard&) {
        s.all_held = false;
        s.changed.notify_all();
    });
}

std::vector<CUstream> streams()
{
    return with_state([](state& s, guard&) {
        std::vector<CUstream> list;
        for (auto const& [handle, stream] : s.streams)
            if (!stream->is_default && !stream->destroyed)
                list.push_back(handle_of<CUstream>(handle));
        return list;
    });
}

std::size_t queued(CUstream stream)
{
    return with_state([&](state& s, guard&) {
        auto const found = stream_for_hook(s, stream);
        return found->queue.size() + (found->busy ? 1 : 0);
    });
}

void set_delay_per_byte(std::chrono::duration<double, std::nano> delay)
{
    with_state([&](state& s, guard&) { s.delay = delay; });
}

void set_pinning_time(std::chrono::nanoseconds time)
{
    with_state([&](state& s, guard&) { s.pinning = time; });
}

std::uint64_t bytes_written()
{
    return with_state([](state& s, guard&) { return s.written; });
}

void break_context(int device, CUresult error)
{
    with_state([&](state& s, guard&) {
        if (auto const& primary = s.devices.at(static_cast<std::size_t>(device)).primary)
            break_now(s, *primary, error);
    });
}

void fail(std::string const& function, CUresult error, unsigned after, unsigned times)
{
    with_state([&](state& s, guard&) { s.failures[plain_name(function)] = {error, after, times, {}}; });
}

void fail_here(std::string const& function, CUresult error)
{
    with_state([&](state& s, guard&) { s.failures[plain_name(function)] = {error, 0, 1, std::this_thread::get_id()}; });
}

void set_now_gone()
{
    with_state([](state& s, guard&) { s.gone = true; });
}

std::size_t calls_when_gone()
{
    return with_state([](state& s, guard&) { return s.calls_when_gone; });
}

std::size_t calls(std::string const& function)
{
    return with_state([&](state& s, guard&) { return s.calls[plain_name(function)]; });
}

void set_allocation_counter(std::size_t (*counter)())
{
    with_state([=](state& s, guard&) { s.allocation_counter = counter; });
}

std::size_t allocations()
{
    return with_state([](state& s, guard&) { return s.allocations; });
}

bool is_in_call() noexcept
{
    return in_call();
}

std::map<std::string, std::size_t> calls_of_this_thread()
{
    return with_state([](state& s, guard&) { return s.calls_by_thread[std::this_thread::get_id()]; });
}

std::map<CUstream, std::size_t> calls_on_streams(std::string const& function)
{
    return with_state([&](state& s, guard&) { return s.calls_by_stream[function]; });
}

std::size_t pageable_copies()
{
    return with_state([](state& s, guard&) { return s.pageable_copies; });
}

std::size_t current_contexts()
{
    return context_stack().size();
}

std::size_t mappings()
{
    return live().vmm_mappings;
}

std::size_t streams(CUstream* handles, std::size_t room)
{
    auto const list = streams();
    std::copy_n(list.begin(), std::min(list.size(), room), handles);
    return list.size();
}

live_counts live()
{
    return with_state([](state& s, guard&) {
        live_counts live{.events = s.events.size(),
                         .graphs = s.graphs.size() + s.executable_graphs.size(),
                         .vmm_handles = s.physicals.size(),
                         .libraries = s.libraries.size()};
        for (auto const& device : s.devices)
            live.contexts_retained += device.retained;
        for (auto const& [handle, context] : s.contexts)
            live.contexts_created += context->primary ? 0 : 1;
        for (auto const& [handle, stream] : s.streams)
            live.streams += stream->is_default || stream->destroyed ? 0 : 1;
        for (auto const& [address, region] : s.regions) {
            live.device_allocations += region->kind == region_kind::device ? 1 : 0;
            live.host_allocations += region->kind == region_kind::host ? 1 : 0;
            live.host_registrations += region->kind == region_kind::registered ? 1 : 0;
            live.vmm_reservations += region->kind == region_kind::reservation ? 1 : 0;
            live.vmm_mappings += region->mappings.size();
        }
        return live;
    });
}

std::vector<std::string> violations()
{
    return with_state([](state& s, guard&) { return s.violations; });
}

void clear_violations()
{
    with_state([](state& s, guard&) { s.violations.clear(); });
}

}  // namespace fake_cuda
