// SPDX-License-Identifier: Apache-2.0
#include "gather_methods.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include <gpurx/gather.hpp>

namespace gpurx::bench {

namespace {

memory_span destination_of(batch const& one)
{
    return {memory_kind::device, one.destination, one.size};
}

method plain_copy(device const& on)
{
    return {.name = "one copy",
            .is_rival = false,
            .contiguous = true,
            .enqueue = [&on](batch const& one, stream const& to) {
                require(on.calls().cuMemcpyAsync(one.destination, one.contiguous, one.size, to.get()), "copy");
            }};
}

method library_gather()
{
    return {.name = "gpurx::gather", .is_rival = false, .enqueue = [](batch const& one, stream const& to) {
                static_cast<void>(gather(one.fragments, destination_of(one), to.ref()));
            }};
}

method library_gather_crc32c(device const& on)
{
    auto const result = std::make_shared<device_bytes>(on, sizeof(std::uint32_t));
    return {.name = "gpurx::gather_crc32c",
            .is_rival = false,
            .enqueue =
                [result](batch const& one, stream const& to) {
                    static_cast<void>(gather_crc32c(one.fragments, destination_of(one), result->span(), to.ref()));
                },
            .crc =
                [result] {
                    std::array<std::uint32_t, 1> value{};
                    result->read(std::as_writable_bytes(std::span{value}));
                    return value[0];
                }};
}

method copy_each(device const& on)
{
    return {.name = "cuMemcpyAsync each", .few_commands = false, .enqueue = [&on](batch const& one, stream const& to) {
                auto at = one.destination;
                for (auto const& piece : one.fragments) {
                    require(on.calls().cuMemcpyAsync(at, piece.address, piece.size, to.get()), "copy");
                    at += piece.size;
                }
            }};
}

#if CUDA_VERSION >= 12080
// cudaTypedefs.h has these as PFN_cuMemcpyBatchAsync_v12080 and _v13000: the older says which copy failed.
using batch_copy_12080 = CUresult(CUDAAPI*)(CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t, CUmemcpyAttributes*,
                                            std::size_t*, std::size_t, std::size_t*, CUstream);
using batch_copy_13000 = CUresult(CUDAAPI*)(CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t, CUmemcpyAttributes*,
                                            std::size_t*, std::size_t, CUstream);

void* find_versioned(device const& on, char const* name, int version)
{
    void* found = nullptr;
    CUdriverProcAddressQueryResult answer = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    auto const status = on.more().cuGetProcAddress(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &answer);
    return status == CUDA_SUCCESS && answer == CU_GET_PROC_ADDRESS_SUCCESS ? found : nullptr;
}

CUmemcpyAttributes in_stream_order()
{
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return attributes;
}

// The driver's interface is without const; it changes nothing.
template <class T>
T* changeable(std::vector<T> const& of)
{
    return const_cast<T*>(of.data());
}

method batch_copy(device const& on)
{
    method result{.name = "cuMemcpyBatchAsync", .few_commands = false};
    if (on.more().cuGetProcAddress == nullptr) {
        result.missing = "the driver has no cuGetProcAddress";
        return result;
    }
    auto const newer = reinterpret_cast<batch_copy_13000>(find_versioned(on, "cuMemcpyBatchAsync", 13000));
    auto const older = newer == nullptr
                           ? reinterpret_cast<batch_copy_12080>(find_versioned(on, "cuMemcpyBatchAsync", 12080))
                           : nullptr;
    if (newer == nullptr && older == nullptr)
        result.missing = "the driver has no cuMemcpyBatchAsync";
    result.enqueue = [newer, older](batch const& one, stream const& to) {
        auto attributes = in_stream_order();
        std::size_t from_first = 0;
        std::size_t failed = 0;
        auto* const dsts = changeable(one.to);
        auto* const srcs = changeable(one.from);
        auto* const sizes = changeable(one.sizes);
        auto const count = one.sizes.size();
        require(newer != nullptr ? newer(dsts, srcs, sizes, count, &attributes, &from_first, 1, to.get())
                                 : older(dsts, srcs, sizes, count, &attributes, &from_first, 1, &failed, to.get()),
                "copy a batch");
    };
    return result;
}
#else
method batch_copy(device const&)
{
    return {.name = "cuMemcpyBatchAsync", .missing = "built with a CUDA toolkit that does not know it"};
}
#endif

// `fragments_per_block`: how many a block takes at a time.
method rival(device const& on, std::string name, char const* kernel, unsigned fragments_per_block)
{
    method result{.name = std::move(name)};
    auto* const function = on.kernel(kernel, result.missing);
    // As many as fit on the GPU at a time, or some more.
    auto const most = static_cast<unsigned>(on.gpu().facts().processors) * (2048 / rival_threads);
    result.enqueue = [&on, function, most, fragments_per_block](batch const& one, stream const& to) {
        auto pieces = one.pieces;
        auto count = static_cast<unsigned>(one.fragments.size());
        auto const blocks = std::min((count + fragments_per_block - 1) / fragments_per_block, std::max(most, 1U));
        std::array<void*, 2> arguments{&pieces, &count};
        on.launch(function, blocks, rival_threads, arguments, to.get());
    };
    return result;
}

}  // namespace

std::vector<method> all_methods(device const& on)
{
    return {plain_copy(on),
            library_gather(),
            library_gather_crc32c(on),
            copy_each(on),
            batch_copy(on),
            rival(on, "kernel: thread per byte", "gpurx_bench_bytes", 1),
            rival(on, "kernel: warp per fragment", "gpurx_bench_warps", rival_threads / 32)};
}

}  // namespace gpurx::bench
