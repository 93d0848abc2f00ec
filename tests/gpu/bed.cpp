// SPDX-License-Identifier: Apache-2.0
#include "bed.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <gpurx/gather.hpp>
#include <set>
#include <string>

#include "cuda/stream_point.hpp"

namespace gpurx::test {

namespace {

using detail::cuda::context_scope;
using detail::cuda::gpu;

void require(CUresult status)
{
    INFO("CUDA error " << static_cast<int>(status));
    REQUIRE(status == CUDA_SUCCESS);
}

// A word in pinned memory for each stream that is held. Never freed, as that may wait for the GPU, and so for streams
// that are held.
std::uint32_t& new_gate(gpu& on)
{
    constexpr std::size_t count = 16384;
    static std::atomic<std::size_t> used{0};
    static auto* const words = [&] {
        void* pinned = nullptr;
        context_scope const scope{on};
        require(on.calls().cuMemHostAlloc(&pinned, count * sizeof(std::uint32_t),
                                          CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
        std::fill_n(static_cast<std::uint32_t*>(pinned), count, 0);
        return static_cast<std::uint32_t*>(pinned);
    }();
    auto const index = used.fetch_add(1);
    REQUIRE(index < count);
    return words[index];
}

// A kernel's first launch in a context may load it there, and that may wait for all of the context's streams: not with
// one of them held.
void launch_each_kernel(gpu& on)
{
    static std::set<int> done;
    if (!done.insert(on.ordinal()).second)
        return;
    gpu_bytes bytes{on, 64, std::byte{}};
    gpu_test_stream stream{on};
    std::array const piece{fragment{bytes.address(), 16, memory_kind::device}};
    REQUIRE(gather(piece, bytes.span().subspan(16, 16), stream.ref()) == 16);
    REQUIRE(gather_crc32c(piece, bytes.span().subspan(32, 16), bytes.span().subspan(48, 4), stream.ref()) == 16);
    stream.finish();
}

}  // namespace

gpu& gpu_or_skip(int ordinal)
{
    std::string reason;
    gpu* found = nullptr;
    try {
        found = &gpu::open(ordinal);
    } catch (system_error const& failure) {
        reason = failure.what();
    }
    if (found == nullptr)
        SKIP("no GPU " << ordinal << ": " << reason);
    return *found;
}

void* driver_function(char const* name)
{
    static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
    REQUIRE(library != nullptr);
    return ::dlsym(library, name);
}

gpu_test_stream::gpu_test_stream(gpu& on) : on_{on}
{
    context_scope const scope{on_};
    require(on_.calls().cuStreamCreate(&handle_, CU_STREAM_NON_BLOCKING));
}

gpu_test_stream::~gpu_test_stream()
{
    let_go();
    context_scope const scope{on_};
    static_cast<void>(on_.calls().cuStreamSynchronize(handle_));
    static_cast<void>(GPURX_DRIVER(cuStreamDestroy)(handle_));
}

void gpu_test_stream::hold()
{
    launch_each_kernel(on_);
    gate_ = &new_gate(on_);
    context_scope const scope{on_};
    // Not by a host function: a driver may run those of all streams on one thread.
    require(
        GPURX_DRIVER(cuStreamWaitValue32)(handle_, reinterpret_cast<CUdeviceptr>(gate_), 1, CU_STREAM_WAIT_VALUE_EQ));
}

void gpu_test_stream::let_go()
{
    if (gate_ != nullptr)
        std::atomic_ref{*gate_}.store(1);
}

void gpu_test_stream::finish()
{
    context_scope const scope{on_};
    require(on_.calls().cuStreamSynchronize(handle_));
}

gpu_bytes::gpu_bytes(gpu& on, std::size_t size, std::byte fill) : on_{on}, size_{size}
{
    context_scope const scope{on_};
    require(on_.calls().cuMemAlloc(&address_, std::max<std::size_t>(size, 1)));
    write(std::vector<std::byte>(size, fill));
}

gpu_bytes::~gpu_bytes()
{
    context_scope const scope{on_};
    static_cast<void>(on_.calls().cuMemFree(address_));
}

void gpu_bytes::write(std::span<std::byte const> bytes, std::size_t offset)
{
    if (bytes.empty())
        return;
    context_scope const scope{on_};
    require(GPURX_DRIVER(cuMemcpyHtoD)(address_ + offset, bytes.data(), bytes.size()));
    // That returns when `bytes` may be changed; streams that do not wait for the default one see them after this.
    require(on_.calls().cuStreamSynchronize(nullptr));
}

std::vector<std::byte> gpu_bytes::read() const
{
    return read_bytes(on_, address_, size_);
}

void look_at_all_streams(CUstream passes)
{
    // A look asks for a stream that has just come in, and for all that are hurried. The second ends behind the first.
    for (int looks = 0; looks < 2; ++looks) {
        detail::look_at_streams();
        detail::stream_point* behind = nullptr;
        detail::spare_point spare;
        spare.provide();
        mark(behind, {.ordinal = gpu_or_skip().ordinal(), .stream = passes}, spare);
        detail::cuda::wait_for(behind);
    }
}

std::vector<std::byte> read_bytes(gpu& on, std::uintptr_t address, std::size_t size)
{
    context_scope const scope{on};
    std::vector<std::byte> bytes(size);
    if (size > 0)
        require(GPURX_DRIVER(cuMemcpyDtoH)(bytes.data(), address, size));
    return bytes;
}

std::vector<std::byte> read_loan(gpu& on, gpu_test_stream& stream, rx_buffer& loan)
{
    loan.acquire(stream.ref());
    stream.finish();
    std::vector<std::byte> all;
    for (auto const& piece : loan.fragments()) {
        auto const bytes = read_bytes(on, piece.address, piece.size);
        all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
}

}  // namespace gpurx::test
