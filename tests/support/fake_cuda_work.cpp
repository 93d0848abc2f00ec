// SPDX-License-Identifier: Apache-2.0
//
// The fake CUDA driver: what streams do. Copies, fills and kernels.
#include <algorithm>
#include <cstring>
#include <optional>

#include "fake_cuda_occupancy.hpp"
#include "fake_cuda_state.hpp"

namespace fake_cuda::inside {

namespace {

using context_pointer = std::shared_ptr<context>;
using stream_pointer = std::shared_ptr<stream>;

// One end of a copy. Memory that CUDA does not know is the program's own, pageable.
struct place {
    range addresses;
    bool pageable = false;
    // The bytes, once they are needed; null: there are none, or not for this stream.
    [[nodiscard]] std::byte* find(state& s, stream const& on) const
    {
        if (pageable)
            return reinterpret_cast<std::byte*>(addresses.begin);
        return translate(s, addresses, {reader::kind::copy, on.of.get()});
    }
};

place place_at(state& s, std::uint64_t address, std::size_t size)
{
    return {{address, size}, !is_known(s, address)};
}

// On the stream's thread: finds both ends, and calls `move(to, from)`; `from` is null where there is no source.
template <class Move>
CUresult move_bytes(stream& on, place const& to, std::optional<place> const& from, Move move)
{
    take_time(on, to.addresses.size);
    auto& s = all();
    guard lock{s.mutex};
    if (on.of->error != CUDA_SUCCESS || on.dropped)
        return CUDA_SUCCESS;
    auto* const target = to.find(s, on);
    auto const* const source = from ? from->find(s, on) : nullptr;
    if (target == nullptr || (from && source == nullptr))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    count_written(s, to.addresses.begin, to.addresses.size);
    lock.unlock();
    move(target, source);
    return CUDA_SUCCESS;
}

std::vector<range> known(place const& to, std::optional<place> const& from)
{
    std::vector<range> list;
    if (!to.pageable)
        list.push_back(to.addresses);
    if (from && !from->pageable)
        list.push_back(from->addresses);
    return list;
}

// The bytes of pageable memory are taken when the copy is enqueued, so that the caller may change them.
operation copy_operation(place const& to, place const& from)
{
    auto const size = to.addresses.size;
    std::vector<std::byte> taken;
    if (from.pageable) {
        auto const* const start = reinterpret_cast<std::byte const*>(from.addresses.begin);
        taken.assign(start, start + size);
    }
    auto const source = from.pageable ? std::nullopt : std::optional{from};
    operation op;
    op.uses = [to, source] { return known(to, source); };
    op.run = [to, source, size, taken = std::move(taken)](stream& on) {
        return move_bytes(on, to, source, [&](std::byte* target, std::byte const* start) {
            std::memmove(target, source ? start : taken.data(), size);
        });
    };
    return op;
}

CUresult copy(state& s, guard& lock, stream_pointer const& on, std::uint64_t to, std::uint64_t from, std::size_t size,
              bool waits)
{
    if (size == 0)
        return CUDA_SUCCESS;
    if (to == 0 || from == 0)
        return CUDA_ERROR_INVALID_VALUE;
    auto const target = place_at(s, to, size);
    auto const source = place_at(s, from, size);
    if (on->captured != capture::none && (source.pageable || target.pageable)) {
        s.violate("a copy of pageable memory goes into a graph, which is not modelled");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if ((source.pageable || target.pageable) && !waits)
        ++s.pageable_copies;
    // A driver may wait for the stream before it takes the bytes,
    if (source.pageable && !waits)
        if (auto const status = wait_for(s, lock, *on, on->last); status != CUDA_SUCCESS)
            return status;
    auto const done = enqueue(s, lock, *on, copy_operation(target, source));
    // and may return once it has them.
    auto const is_taken = source.pageable && !target.pageable;
    return (waits && !is_taken) || target.pageable ? wait_for(s, lock, *on, done) : CUDA_SUCCESS;
}

CUresult copy_on(char const* function, CUstream handle, std::uint64_t to, std::uint64_t from, std::size_t size,
                 bool waits)
{
    auto const body = [&](state& s, guard& lock, std::string const&, context_pointer const&, stream_pointer const& on) {
        return copy(s, lock, on, to, from, size, waits);
    };
    return call_on_stream(function, handle, body);
}

CUresult fill_on(char const* function, CUstream handle, std::uint64_t to, unsigned char value, std::size_t size,
                 bool waits)
{
    auto const body = [&](state& s, guard& lock, std::string const&, context_pointer const&, stream_pointer const& on) {
        if (size == 0)
            return CUDA_SUCCESS;
        auto const target = place_at(s, to, size);
        if (target.pageable)
            return CUDA_ERROR_INVALID_VALUE;
        operation op;
        op.uses = [target] { return known(target, std::nullopt); };
        op.run = [target, value, size](stream& runs) {
            return move_bytes(runs, target, std::nullopt,
                              [&](std::byte* start, std::byte const*) { std::memset(start, value, size); });
        };
        auto const done = enqueue(s, lock, *on, std::move(op));
        return waits ? wait_for(s, lock, *on, done) : CUDA_SUCCESS;
    };
    return call_on_stream(function, handle, body);
}

// The parameters as one block, as the kernel gets them; empty if they are not all there.
parameter_block collect(ptx::kernel const& code, void** parameters, void** extra)
{
    parameter_block block(code.parameter_bytes);
    if (parameters != nullptr && extra == nullptr) {
        for (auto const& one : code.parameters)
            std::memcpy(&block[one.begin], parameters[&one - code.parameters.data()], one.size);
        return block;
    }
    void const* buffer = nullptr;
    std::size_t size = 0;
    for (; extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = *static_cast<std::size_t const*>(extra[1]);
        else
            return {};
    }
    if (parameters != nullptr || buffer == nullptr || size < block.size())
        return {};
    std::memcpy(block.data(), buffer, block.size());
    return block;
}

operation kernel_operation(loaded_kernel const& what, unsigned blocks, unsigned threads, parameter_block parameters)
{
    operation op;
    op.library = what.library;
    auto const shared = std::make_shared<parameter_block const>(std::move(parameters));
    op.uses = [kernel = what.what, shared] {
        auto const of_host = [](range const& wanted) -> std::byte const* {
            auto const found = find_region(all(), wanted.begin);
            auto const readable = found && (found->kind == region_kind::host || found->kind == region_kind::registered);
            return readable && found->addresses.holds(wanted) ? reinterpret_cast<std::byte const*>(wanted.begin)
                                                              : nullptr;
        };
        return kernel_uses(*kernel.code, of_host, *shared);
    };
    op.run = [kernel = what.what, shared, blocks, threads](stream& on) {
        return run_kernel(on, *kernel.code, blocks, threads, *shared);
    };
    return op;
}

// An image is loaded lazily: a driver that is too old for it says so when a kernel is first needed.
bool may_load(state const& s, loaded_kernel const& kernel)
{
    return s.needed_versions.at(kernel.library) <= s.version;
}

// What a handle of a library or a kernel stands for; a driver follows it as a pointer.
template <class Object, class Handle>
Object& follow(state& s, std::map<number, Object>& in, Handle handle, std::string const& name)
{
    auto const found = in.find(number_of(handle));
    if (found == in.end())
        abort_of_handle(s, name, number_of(handle));
    return found->second;
}

bool all_positive(std::initializer_list<unsigned> list)
{
    return std::ranges::find(list, 0U) == list.end();
}

}  // namespace

void count_written(state& s, std::uint64_t address, std::size_t size)
{
    auto const at = find_region(s, address);
    if (at && (at->kind == region_kind::device || at->kind == region_kind::reservation))
        s.written += size;
}

}  // namespace fake_cuda::inside

using namespace fake_cuda::inside;

extern "C" {

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t size)
{
    return copy_on(__func__, nullptr, to, from, size, true);
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, void const* from, std::size_t size)
{
    return copy_on(__func__, nullptr, to, address_of(from), size, true);
}

CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t size)
{
    return copy_on(__func__, nullptr, address_of(to), from, size, true);
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream)
{
    return copy_on(__func__, stream, to, from, size, false);
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, void const* from, std::size_t size, CUstream stream)
{
    return copy_on(__func__, stream, to, address_of(from), size, false);
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t size, CUstream stream)
{
    return copy_on(__func__, stream, address_of(to), from, size, false);
}

CUresult CUDAAPI cuMemsetD8(CUdeviceptr to, unsigned char value, std::size_t size)
{
    return fill_on(__func__, nullptr, to, value, size, true);
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t size, CUstream stream)
{
    return fill_on(__func__, stream, to, value, size, false);
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* into, void const* image, CUjit_option*, void**, unsigned,
                                   CUlibraryOption*, void**, unsigned)
{
    return call(__func__, [&](state& s, guard&, std::string const&) {
        if (into == nullptr || image == nullptr)
            return CUDA_ERROR_INVALID_VALUE;
        auto const loaded = load_image(s, image);
        if (!loaded)
            return CUDA_ERROR_INVALID_IMAGE;
        auto const made = s.new_handle();
        auto& names = s.libraries[made];
        s.needed_versions[made] = driver_version_for(image);
        for (auto const& [kernel_name, code] : *loaded) {
            auto const kernel_handle = s.new_handle();
            names[kernel_name] = kernel_handle;
            s.kernels[kernel_handle] = {{loaded, &code}, made, {}};
        }
        *into = handle_of<CUlibrary>(made);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary handle)
{
    return call(__func__, [&](state& s, guard&, std::string const& name) {
        auto const number = number_of(handle);
        auto const kernels = follow(s, s.libraries, handle, name);
        for (auto const& [stream_handle, stream] : s.streams)
            if (stream->library_in_use == number ||
                (stream->of->error == CUDA_SUCCESS &&
                 std::ranges::any_of(stream->queue, [&](operation const& op) { return op.library == number; })))
                s.violate(name + " of a library whose kernels are queued");
        for (auto const& [kernel_name, kernel_handle] : kernels) {
            s.kernels.erase(kernel_handle);
            s.given_up.insert(kernel_handle);
        }
        s.libraries.erase(number);
        s.given_up.insert(number);
        s.needed_versions.erase(number);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* into, CUlibrary handle, char const* kernel_name)
{
    return call(__func__, [&](state& s, guard&, std::string const& name) {
        if (into == nullptr || kernel_name == nullptr)
            return CUDA_ERROR_INVALID_VALUE;
        auto const& kernels = follow(s, s.libraries, handle, name);
        auto const found = kernels.find(kernel_name);
        if (found == kernels.end())
            return CUDA_ERROR_NOT_FOUND;
        *into = handle_of<CUkernel>(found->second);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* into, CUkernel handle)
{
    auto const body = [&](state& s, guard&, std::string const& name, context_pointer const&) {
        if (!may_load(s, follow(s, s.kernels, handle, name)))
            return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
        *into = handle_of<CUfunction>(number_of(handle));
        return CUDA_SUCCESS;
    };
    return call_in_context(__func__, body);
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int block_size,
                                                             std::size_t /*shared*/)
{
    auto const body = [&](state& s, guard&, std::string const& name, context_pointer const&) {
        auto const& kernel = follow(s, s.kernels, function, name);
        if (block_size <= 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (!may_load(s, kernel))
            return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
        *blocks = blocks_per_processor(kernel.what.code->name, static_cast<unsigned>(block_size));
        return CUDA_SUCCESS;
    };
    return call_in_context(__func__, body);
}

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                unsigned block_x, unsigned block_y, unsigned block_z, unsigned /*shared*/,
                                CUstream handle, void** parameters, void** extra)
{
    auto const body = [&](state& s, guard& lock, std::string const& name, context_pointer const& current,
                          stream_pointer const& on) {
        auto& kernel = follow(s, s.kernels, function, name);
        if (on->of != current) {
            s.violate(name + " in another context than the stream's");
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (!may_load(s, kernel))
            return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
        auto const& code = *kernel.what.code;
        auto const threads = std::uint64_t{block_x} * block_y * block_z;
        if (!all_positive({grid_x, grid_y, grid_z, block_x, block_y, block_z}) || threads > code.max_threads)
            return CUDA_ERROR_INVALID_VALUE;
        if (std::max({grid_y, grid_z, block_y, block_z}) > 1) {
            s.violate(name + " of more than one dimension, which is not modelled");
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        auto block = collect(code, parameters, extra);
        if (block.empty())
            return CUDA_ERROR_INVALID_VALUE;
        if (kernel.loaded_in.insert(current->handle).second && s.loading_waits)
            if (auto const status = wait_for_all(s, lock, current); status != CUDA_SUCCESS)
                return status;
        enqueue(s, lock, *on, kernel_operation(kernel, grid_x, block_x, std::move(block)));
        return CUDA_SUCCESS;
    };
    return call_on_stream(__func__, handle, body);
}

}  // extern "C"
