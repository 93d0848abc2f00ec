// SPDX-License-Identifier: Apache-2.0
//
// That the fake CUDA driver keeps CUDA's rules, as far as the tests of the library rely on it.
#include <dlfcn.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <stdexcept>
#include <thread>

#include "fake_cuda_bed.hpp"

namespace gpurx::detail {

TEST_CASE("fake CUDA: dlopen finds it, by the driver's name and names")
{
    auto* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library != nullptr);
    for (auto const* const name :
         {"cuInit", "cuMemAlloc_v2", "cuCtxCreate_v4", "cuMemcpyHtoDAsync_v2", "cuLaunchKernel"})
        CHECK(::dlsym(library, name) != nullptr);
    CHECK(::dlsym(library, "cuInit") == reinterpret_cast<void*>(&cuInit));
    ::dlclose(library);
}

TEST_CASE("fake CUDA: nothing goes without cuInit, nor without a context")
{
    fake_cuda::reset();
    fake_cuda::set_initialised(false);
    int count = 0;
    CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(cuInit(0) == CUDA_SUCCESS);
    CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    CHECK(count == 2);
    CUdeviceptr address = 0;
    CHECK(cuMemAlloc(&address, 1) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(fake_cuda::violations() == std::vector<std::string>{"cuMemAlloc without a current context"});
    fake_cuda::clear_violations();
    CHECK(fake_cuda::calls("cuMemAlloc_v2") == 1);
    int value = 0;
    CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1) == CUDA_SUCCESS);
    CHECK(value == 132);
    // An H100 has it for its own memory, and not for the host's.
    CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1) == CUDA_SUCCESS);
    CHECK(value == 1);
    CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED, 1) == CUDA_SUCCESS);
    CHECK(value == 0);
    fake_cuda::set_attribute(1, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0);
    CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1) == CUDA_SUCCESS);
    CHECK(value == 0);
    CHECK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 2) == CUDA_ERROR_INVALID_DEVICE);
    fake_cuda::reset();
}

TEST_CASE("fake CUDA: mistakes with memory and handles are remembered")
{
    in_context const context;
    auto const stream = make_stream();
    auto const event = make_event();
    auto const address = allocate(4096);
    fake_cuda::hold(stream);
    REQUIRE(cuMemsetD8Async(address, 1, 4096, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    CHECK(cuMemFree(address) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuEventDestroy(event) == CUDA_SUCCESS);
    CHECK(fake_cuda::violations() ==
          std::vector<std::string>{"cuMemFree of memory that queued work uses",
                                   "cuMemFree of an address that is not one of such memory"});
    fake_cuda::let_go(stream);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);  // it is not there any more
    CHECK(cuStreamDestroy(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    fake_cuda::clear_violations();
}

TEST_CASE("fake CUDA: a destroyed stream or event ends the program, with the reason")
{
    in_context const context;
    auto const event = make_event();
    auto const stream = make_stream();
    auto const held = make_stream();
    fake_cuda::hold(held);
    REQUIRE(cuEventRecord(event, held) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(held) == CUDA_SUCCESS);
    CHECK(last_words([&] {
              cuStreamQuery(held);
          }).starts_with("fake CUDA: cuStreamQuery with a handle that was given up"));
    fake_cuda::let_go(held);
    REQUIRE(cuEventSynchronize(event) == CUDA_SUCCESS);
    REQUIRE(cuEventDestroy(event) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    CHECK(last_words([&] {
              cuEventQuery(event);
          }).starts_with("fake CUDA: cuEventQuery with a handle that was given up"));
    CHECK(
        last_words([&] { cuStreamDestroy(stream); }).starts_with("fake CUDA: cuStreamDestroy with a handle that was"));
    int garbage = 0;
    auto* const never = reinterpret_cast<CUstream>(&garbage);
    CHECK(last_words([&] {
              cuStreamSynchronize(never);
          }).starts_with("fake CUDA: cuStreamSynchronize with what is no handle"));
    CHECK(cuEventQuery(nullptr) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("fake CUDA: a program ends with its uncleared errors")
{
    fake_cuda::reset();
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    CUdeviceptr address = 0;
    CHECK(last_words([&] { cuMemAlloc(&address, 1); }, true) ==
          "fake CUDA: at the end of the program: cuMemAlloc without a current context\n");
    CHECK(last_words(
              [&] {
                  cuMemAlloc(&address, 1);
                  fake_cuda::reset_settings();
                  fake_cuda::reset();
              },
              true) == "fake CUDA: at the end of the program: cuMemAlloc without a current context\n");
    CHECK(last_words(
              [&] {
                  cuMemAlloc(&address, 1);
                  fake_cuda::clear_violations();
              },
              true)
              .empty());
}

TEST_CASE("fake CUDA: an error in one context leaves another one of the same device as it is")
{
    in_context const context;
    CUcontext other = nullptr;
    REQUIRE(cuCtxCreate(&other, nullptr, 0, 0) == CUDA_SUCCESS);
    auto const stream = make_stream();
    auto const address = allocate(1);
    REQUIRE(cuMemsetD8Async(address, 1, 1, stream) == CUDA_SUCCESS);
    fake_cuda::break_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    REQUIRE(cuMemsetD8Async(address, 2, 1, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(fake_cuda::bytes_at(address, 1)[0] == std::byte{2});
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    REQUIRE(cuCtxDestroy(other) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("fake CUDA: calls of a function stand still, and no others with them")
{
    in_context const context;
    fake_cuda::stall("cuMemAlloc");
    std::atomic<bool> done{false};
    std::jthread const stands{[&] {
        cuCtxPushCurrent(context.handle());
        CUdeviceptr address = 0;
        cuMemAlloc(&address, 1);
        done = true;
        cuMemFree(address);
        cuCtxPopCurrent(nullptr);
    }};
    while (fake_cuda::calls("cuMemAlloc") == 0)
        std::this_thread::yield();
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(all_others_wait());
    CHECK_FALSE(done);
    fake_cuda::go_on("cuMemAlloc_v2");
}

TEST_CASE("fake CUDA: a broken context reports it everywhere, held streams or not")
{
    in_context const context;
    auto const stream = make_stream();
    auto const event = make_event();
    auto const address = allocate(16);
    fake_cuda::hold(stream);
    REQUIRE(cuMemsetD8Async(address, 1, 16, stream) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
    auto const waits = fake_cuda::calls("cuStreamSynchronize");
    std::jthread const breaks{[=] {
        while (fake_cuda::calls("cuStreamSynchronize") == waits)
            std::this_thread::yield();
        fake_cuda::break_context(0, CUDA_ERROR_ECC_UNCORRECTABLE);
    }};
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK(cuEventQuery(event) == CUDA_ERROR_ECC_UNCORRECTABLE);
    // This need not, and so does not.
    auto capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    CHECK(cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS);
    CHECK(capture == CU_STREAM_CAPTURE_STATUS_NONE);
    CUdeviceptr more = 0;
    CHECK(cuMemAlloc(&more, 16) == CUDA_ERROR_ECC_UNCORRECTABLE);
    fake_cuda::let_go(stream);
    CHECK(fake_cuda::bytes_at(address, 1)[0] == std::byte{0});
    CHECK(cuMemFree(address) == CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK(cuEventDestroy(event) == CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK(cuStreamDestroy(stream) == CUDA_ERROR_ECC_UNCORRECTABLE);
}

TEST_CASE("fake CUDA: a copy beyond an allocation breaks the context")
{
    in_context const context;
    auto const address = allocate(4096);
    CHECK(cuMemsetD8(address + 1, 0, 4096) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemFree(address) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("fake CUDA: objects of two contexts do not go together")
{
    in_context const context;
    auto const event = make_event();
    auto const stream = make_stream();
    CUcontext other = nullptr;
    REQUIRE(cuCtxCreate(&other, nullptr, 0, 0) == CUDA_SUCCESS);
    CHECK(cuEventRecord(event, nullptr) == CUDA_ERROR_INVALID_HANDLE);
    CUcontext of_stream = nullptr;
    REQUIRE(cuStreamGetCtx(stream, &of_stream) == CUDA_SUCCESS);
    CHECK(of_stream == context.handle());
    std::jthread{[stream] {
        CUdevice device = -1;
        CHECK(cuStreamGetDevice(stream, &device) == CUDA_SUCCESS);  // without a context
        CHECK(device == 0);
    }}.join();
    REQUIRE(cuStreamGetCtx(nullptr, &of_stream) == CUDA_SUCCESS);
    CHECK(of_stream == other);
    REQUIRE(cuStreamWaitEvent(nullptr, event, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(fake_cuda::violations().size() == 1);
    fake_cuda::clear_violations();
    REQUIRE(cuCtxDestroy(other) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    REQUIRE(cuEventDestroy(event) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: objects that a context is ended with are a mistake, and go with it")
{
    {
        in_context const context;
        auto const stream = make_stream();
        fake_cuda::hold(stream);
        REQUIRE(cuEventRecord(make_event(), stream) == CUDA_SUCCESS);
        allocate(1);
        cuDevicePrimaryCtxRelease(0);
        CHECK(fake_cuda::violations() ==
              std::vector<std::string>{"a context ended with work in its streams",
                                       "a context ended with 3 streams, events or allocations"});
        CUdeviceptr more = 0;
        CHECK(cuMemAlloc(&more, 1) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
        CUcontext again = nullptr;
        REQUIRE(cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
        fake_cuda::clear_violations();
    }
}

TEST_CASE("fake CUDA: calls fail on request, and after the end")
{
    in_context const context;
    fake_cuda::fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 1, 2);
    CUdeviceptr address = 0;
    REQUIRE(cuMemAlloc(&address, 1) == CUDA_SUCCESS);
    CUdeviceptr other = 0;
    CHECK(cuMemAlloc(&other, 1) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAlloc(&other, 1) == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuMemAlloc(&other, 1) == CUDA_SUCCESS);
    REQUIRE(cuMemFree(other) == CUDA_SUCCESS);
    fake_cuda::set_memory_size(0, 4096);
    CHECK(cuMemAlloc(&other, 4096) == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    fake_cuda::set_now_gone();
    CHECK(cuMemAlloc(&other, 1) == CUDA_ERROR_DEINITIALIZED);
    CHECK(fake_cuda::calls_when_gone() == 1);
    fake_cuda::reset_settings();
}

TEST_CASE("fake CUDA: settings go back, and what was made stays")
{
    in_context const context;
    auto const stream = make_stream();
    auto const address = allocate(16);
    fake_cuda::hold(stream);
    fake_cuda::set_attribute(0, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 64);
    REQUIRE(cuMemsetD8Async(address, 3, 16, stream) == CUDA_SUCCESS);
    CHECK_THROWS_AS(fake_cuda::set_devices(1), std::logic_error);
    fake_cuda::break_context(0, CUDA_ERROR_LAUNCH_FAILED);
    fake_cuda::break_context(0, CUDA_SUCCESS);
    fake_cuda::reset_settings();
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(fake_cuda::bytes_at(address, 16)[15] == std::byte{3});
    int warp = 0;
    REQUIRE(cuDeviceGetAttribute(&warp, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0) == CUDA_SUCCESS);
    CHECK(warp == 32);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: many threads at once")
{
    in_context const context;
    auto const work = [&context] {
        cuCtxPushCurrent(context.handle());
        CUstream stream = nullptr;
        cuStreamCreate(&stream, 0);
        CUevent event = nullptr;
        cuEventCreate(&event, 0);
        for (int i = 0; i < 50; ++i) {
            CUdeviceptr address = 0;
            cuMemAlloc(&address, 4096);
            cuMemsetD8Async(address, 1, 4096, stream);
            cuEventRecord(event, stream);
            cuStreamWaitEvent(nullptr, event, 0);
            cuEventSynchronize(event);
            cuMemFree(address);
        }
        cuEventDestroy(event);
        cuStreamDestroy(stream);
        cuCtxPopCurrent(nullptr);
    };
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 4; ++i)
            threads.emplace_back(work);
    }
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: the process may end with work in held streams")
{
    fake_cuda::reset();
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS);
    REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
    auto const stream = make_stream();
    fake_cuda::hold(stream);
    REQUIRE(cuMemsetD8Async(allocate(16), 1, 16, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
}

}  // namespace gpurx::detail
