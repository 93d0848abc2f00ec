// SPDX-License-Identifier: Apache-2.0
#include "bed.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <string>

namespace gpurx::test {

namespace {

using detail::cuda::context_scope;
using detail::cuda::gpu;

void require(CUresult status)
{
    INFO("CUDA error " << static_cast<int>(status));
    REQUIRE(status == CUDA_SUCCESS);
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
    gate_ = std::make_shared<std::mutex>();
    held_ = std::unique_lock{*gate_};
    auto* const waits = new std::shared_ptr<std::mutex>{gate_};
    auto const wait = [](void* argument) {
        std::unique_ptr<std::shared_ptr<std::mutex>> const gate{static_cast<std::shared_ptr<std::mutex>*>(argument)};
        std::scoped_lock const lock{**gate};
    };
    context_scope const scope{on_};
    require(GPURX_DRIVER(cuLaunchHostFunc)(handle_, wait, waits));
}

void gpu_test_stream::let_go()
{
    if (held_.owns_lock())
        held_.unlock();
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
    context_scope const scope{on_};
    if (!bytes.empty())
        require(GPURX_DRIVER(cuMemcpyHtoD)(address_ + offset, bytes.data(), bytes.size()));
}

std::vector<std::byte> gpu_bytes::read() const
{
    return read_bytes(on_, address_, size_);
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
