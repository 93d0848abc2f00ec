// SPDX-License-Identifier: Apache-2.0
//
// That the fake CUDA driver keeps CUDA's rules for memory.
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <thread>

#include "fake_cuda_bed.hpp"

namespace gpurx::detail {

TEST_CASE("fake CUDA: device memory is out of the CPU's reach, and copies get there")
{
    in_context const context;
    auto const sent = pattern(10000);
    auto const address = allocate(sent.size());
    CHECK_FALSE(readable(address));
    REQUIRE(cuMemcpyHtoD(address, sent.data(), sent.size()) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
    CHECK(std::memcmp(fake_cuda::bytes_at(address, sent.size()), sent.data(), sent.size()) == 0);
    CHECK(fake_cuda::bytes_written() == sent.size());
    std::vector<std::uint8_t> back(100);
    REQUIRE(cuMemcpy(address_of(back.data()), address + 5000, back.size()) == CUDA_SUCCESS);
    CHECK(std::memcmp(back.data(), &sent[5000], back.size()) == 0);
    CHECK_THROWS_AS(fake_cuda::bytes_at(address, sent.size() + 1), std::out_of_range);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    CHECK_FALSE(readable(address));
}

TEST_CASE("fake CUDA: pageable memory is copied out before the call returns, pinned memory when its turn comes")
{
    in_context const context;
    auto const address = allocate(2);
    std::uint8_t pageable = 1;
    auto* const pinned = static_cast<std::uint8_t*>(allocate_host(1));
    *pinned = 1;
    fake_cuda::hold_all();
    REQUIRE(cuMemcpyHtoD(address, &pageable, 1) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoDAsync(address + 1, pinned, 1, CU_STREAM_LEGACY) == CUDA_SUCCESS);
    CHECK(fake_cuda::bytes_at(address, 1)[0] == std::byte{0});
    pageable = 2;
    *pinned = 2;
    CHECK(fake_cuda::queued(nullptr) == 2);
    fake_cuda::let_go_all();
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(fake_cuda::bytes_at(address, 2)[0] == std::byte{1});
    CHECK(fake_cuda::bytes_at(address, 2)[1] == std::byte{2});
    REQUIRE(cuMemFreeHost(pinned) == CUDA_SUCCESS);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: an asynchronous copy of pageable memory waits for its stream, and takes the bytes then")
{
    in_context const context;
    auto const address = allocate(2);
    auto const stream = make_stream();
    std::uint8_t pageable = 1;
    fake_cuda::hold(stream);
    REQUIRE(cuMemsetD8Async(address, 9, 2, stream) == CUDA_SUCCESS);
    std::atomic<bool> returned{false};
    std::atomic status{CUDA_ERROR_UNKNOWN};
    std::jthread copies{[&] {
        cuCtxPushCurrent(context.handle());
        status = cuMemcpyHtoDAsync(address, &pageable, 1, stream);
        returned = true;
        cuCtxPopCurrent(nullptr);
    }};
    while (fake_cuda::calls("cuMemcpyHtoDAsync") == 0)
        std::this_thread::yield();
    REQUIRE(all_others_wait());
    CHECK_FALSE(returned);
    CHECK(fake_cuda::queued(stream) == 1);
    fake_cuda::let_go(stream);
    copies.join();
    REQUIRE(status == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(fake_cuda::bytes_at(address, 2)[0] == std::byte{1});
    CHECK(fake_cuda::bytes_at(address, 2)[1] == std::byte{9});
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: memory is given up once the work of its device is done, in whatever context")
{
    in_context const context;
    CUcontext other = nullptr;
    REQUIRE(cuCtxCreate(&other, nullptr, 0, 0) == CUDA_SUCCESS);
    auto const address = allocate(16);
    auto* const pinned = static_cast<std::uint8_t*>(allocate_host(16));
    std::uint64_t registered = 0;
    REQUIRE(cuMemHostRegister(&registered, sizeof registered, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxPopCurrent(nullptr) == CUDA_SUCCESS);
    auto const wish = rdma_memory();
    CUmemGenericAllocationHandle memory = 0;
    CUdeviceptr mapped = 0;
    REQUIRE(cuMemCreate(&memory, granule, &wish, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressReserve(&mapped, granule, 0, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemMap(mapped, granule, 0, memory, 0) == CUDA_SUCCESS);
    auto const used = allocate(16);
    auto const stream = make_stream();
    fake_cuda::hold(stream);
    REQUIRE(cuMemsetD8Async(used, 1, 16, stream) == CUDA_SUCCESS);
    std::atomic<int> freed{0};
    auto const free = [&](auto how) {
        return std::jthread{[&, how] {
            cuCtxPushCurrent(other);
            how();
            ++freed;
            cuCtxPopCurrent(nullptr);
        }};
    };
    {
        auto const device = free([=] { cuMemFree(address); });
        auto const host = free([=] { cuMemFreeHost(pinned); });
        auto const unregisters = free([&] { cuMemHostUnregister(&registered); });
        auto const unmaps = free([=] { cuMemUnmap(mapped, granule); });
        for (auto const* const call : {"cuMemFree", "cuMemFreeHost", "cuMemHostUnregister", "cuMemUnmap"})
            while (fake_cuda::calls(call) == 0)
                std::this_thread::yield();
        REQUIRE(all_others_wait());
        CHECK(freed == 0);
        CHECK(fake_cuda::bytes_at(used, 1)[0] == std::byte{0});
        fake_cuda::let_go(stream);
    }
    CHECK(freed == 4);
    CHECK(fake_cuda::bytes_at(used, 1)[0] == std::byte{1});
    REQUIRE(cuMemFree(used) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressFree(mapped, granule) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(memory) == CUDA_SUCCESS);
    REQUIRE(cuCtxDestroy(other) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: to pin memory takes its time")
{
    in_context const context;
    fake_cuda::set_pinning_time(5ms);
    auto const start = std::chrono::steady_clock::now();
    auto* const pinned = allocate_host(1);
    CHECK(std::chrono::steady_clock::now() - start >= 5ms);
    REQUIRE(cuMemFreeHost(pinned) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: mapped memory is there once access is set, and is exported if it was made for it")
{
    in_context const context;
    auto wish = rdma_memory();
    std::size_t unit = 0;
    REQUIRE(cuMemGetAllocationGranularity(&unit, &wish, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
    REQUIRE(unit == granule);
    CUmemGenericAllocationHandle memory = 0;
    REQUIRE(cuMemCreate(&memory, granule, &wish, 0) == CUDA_SUCCESS);
    CUdeviceptr address = 0;
    REQUIRE(cuMemAddressReserve(&address, 2 * granule, 0, 0, 0) == CUDA_SUCCESS);
    unsigned mapped = 2;
    CHECK(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, address) == CUDA_SUCCESS);
    CHECK(mapped == 0);
    REQUIRE(cuMemMap(address, granule, 0, memory, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(memory) == CUDA_SUCCESS);
    CHECK(cuMemRelease(memory) == CUDA_ERROR_INVALID_VALUE);
    fake_cuda::clear_violations();
    CUmemAccessDesc const access{wish.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    REQUIRE(cuMemSetAccess(address, granule, &access, 1) == CUDA_SUCCESS);
    CHECK_FALSE(readable(address));
    REQUIRE(cuMemsetD8(address + granule - 1, 9, 1) == CUDA_SUCCESS);
    CHECK(fake_cuda::bytes_at(address, granule)[granule - 1] == std::byte{9});

    int descriptor = -1;
    constexpr auto dmabuf = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    CHECK(cuMemGetHandleForAddressRange(&descriptor, address, 2 * granule, dmabuf, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemGetHandleForAddressRange(&descriptor, address, 100, dmabuf, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemGetHandleForAddressRange(&descriptor, address, granule, dmabuf, 1) == CUDA_ERROR_NOT_SUPPORTED);
    fake_cuda::set_pcie_mapping(0, true);
    REQUIRE(cuMemGetHandleForAddressRange(&descriptor, address + granule / 2, granule / 2, dmabuf, 1) == CUDA_SUCCESS);
    auto const exported = fake_cuda::find_export(descriptor);
    REQUIRE(exported.has_value());
    CHECK(exported->address == address + granule / 2);
    CHECK(exported->flags == 1);
    auto* const view = ::mmap(nullptr, exported->offset + exported->size, PROT_READ, MAP_SHARED, descriptor, 0);
    REQUIRE(view != MAP_FAILED);
    CHECK(static_cast<std::byte const*>(view)[exported->offset + exported->size - 1] == std::byte{9});
    ::munmap(view, exported->offset + exported->size);
    ::close(descriptor);

    REQUIRE(cuMemUnmap(address, granule) == CUDA_SUCCESS);
    CHECK_THROWS_AS(fake_cuda::bytes_at(address, 1), std::out_of_range);
    REQUIRE(cuMemAddressFree(address, 2 * granule) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: a range of several mappings is exported as one, if all of it may be")
{
    in_context const context;
    auto wish = rdma_memory();
    CUdeviceptr address = 0;
    REQUIRE(cuMemAddressReserve(&address, 3 * granule, 0, 0, 0) == CUDA_SUCCESS);
    for (unsigned i = 0; i < 3; ++i) {
        wish.allocFlags.gpuDirectRDMACapable = i < 2 ? 1 : 0;
        CUmemGenericAllocationHandle memory = 0;
        REQUIRE(cuMemCreate(&memory, granule, &wish, 0) == CUDA_SUCCESS);
        REQUIRE(cuMemMap(address + i * granule, granule, 0, memory, 0) == CUDA_SUCCESS);
        REQUIRE(cuMemRelease(memory) == CUDA_SUCCESS);
    }
    constexpr auto dmabuf = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    int descriptor = -1;
    CHECK(cuMemGetHandleForAddressRange(&descriptor, address + granule, 2 * granule, dmabuf, 0) ==
          CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemGetHandleForAddressRange(&descriptor, address + granule / 2, granule, dmabuf, 0) == CUDA_SUCCESS);
    auto const exported = fake_cuda::find_export(descriptor);
    REQUIRE(exported.has_value());
    CHECK(exported->address == address + granule / 2);
    CHECK(exported->size == granule);
    CHECK(exported->offset == 0);
    CHECK(::lseek(descriptor, 0, SEEK_END) == static_cast<::off_t>(granule));
    ::close(descriptor);
    for (unsigned i = 0; i < 3; ++i)
        REQUIRE(cuMemUnmap(address + i * granule, granule) == CUDA_SUCCESS);
    REQUIRE(cuMemAddressFree(address, 3 * granule) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: mapped memory without access cannot be touched")
{
    in_context const context;
    auto wish = rdma_memory();
    wish.allocFlags.gpuDirectRDMACapable = 0;
    CUmemGenericAllocationHandle memory = 0;
    REQUIRE(cuMemCreate(&memory, granule, &wish, 0) == CUDA_SUCCESS);
    CUdeviceptr address = 0;
    REQUIRE(cuMemAddressReserve(&address, granule, 0, 0, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemMap(address, granule, 0, memory, 0) == CUDA_SUCCESS);
    int descriptor = -1;
    CHECK(cuMemGetHandleForAddressRange(&descriptor, address, granule, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemsetD8(address, 9, 1) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemUnmap(address, granule) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemRelease(memory) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemAddressFree(address, granule) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: pointers tell what they are")
{
    in_context const context;
    auto const address = allocate(8192);
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
                                   CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
    unsigned type = 0;
    CUdeviceptr start = 0;
    std::size_t size = 0;
    int ordinal = -1;
    unsigned capable = 0;
    CUmemoryPool pool = nullptr;
    void* answers[] = {&type, &start, &size, &ordinal, &capable, &pool};
    REQUIRE(cuPointerGetAttributes(6, asked, answers, address + 100) == CUDA_SUCCESS);
    CHECK((type == CU_MEMORYTYPE_DEVICE && start == address && size == 8192 && ordinal == 0 && capable == 1));
    CHECK(pool == nullptr);
    CUdeviceptr seen_at = 0;
    CHECK(cuPointerGetAttribute(&seen_at, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address) == CUDA_SUCCESS);
    CHECK(seen_at == address);
    CUcontext elsewhere = nullptr;  // whose kernels do not reach it
    REQUIRE(cuCtxCreate(&elsewhere, nullptr, 0, 0) == CUDA_SUCCESS);
    CHECK(cuPointerGetAttribute(&seen_at, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address) == CUDA_ERROR_INVALID_VALUE);
    fake_cuda::set_pointers_told(true);
    CHECK(cuPointerGetAttribute(&seen_at, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address) == CUDA_SUCCESS);
    fake_cuda::set_pointers_told(false);
    REQUIRE(cuCtxDestroy(elsewhere) == CUDA_SUCCESS);
    fake_cuda::set_from_pool(address, true);
    REQUIRE(cuPointerGetAttributes(6, asked, answers, address) == CUDA_SUCCESS);
    CHECK((pool != nullptr && capable == 0));
    int local = 0;
    REQUIRE(cuPointerGetAttributes(6, asked, answers, address_of(&local)) == CUDA_SUCCESS);
    CHECK((type == 0 && ordinal == CU_DEVICE_INVALID));
    CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address_of(&local)) ==
          CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemHostRegister(&local, sizeof local, 0) == CUDA_SUCCESS);
    REQUIRE(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address_of(&local)) == CUDA_SUCCESS);
    CHECK(type == CU_MEMORYTYPE_HOST);
    REQUIRE(cuMemHostUnregister(&local) == CUDA_SUCCESS);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: a slow link takes its time, and an error ends it")
{
    in_context const context;
    auto const address = allocate(1000);
    fake_cuda::set_delay_per_byte(20us);
    auto const start = std::chrono::steady_clock::now();
    REQUIRE(cuMemsetD8(address, 1, 1000) == CUDA_SUCCESS);
    CHECK(std::chrono::steady_clock::now() - start >= 20ms);
    fake_cuda::set_delay_per_byte(1s);
    REQUIRE(cuMemsetD8Async(address, 2, 1000, nullptr) == CUDA_SUCCESS);
    fake_cuda::break_context(0, CUDA_ERROR_LAUNCH_FAILED);
    CHECK(cuMemFree(address) == CUDA_ERROR_LAUNCH_FAILED);
    // Whether the fill was under way by then is chance.
    fake_cuda::clear_violations();
}

}  // namespace gpurx::detail
