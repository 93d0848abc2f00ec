// SPDX-License-Identifier: Apache-2.0
//
// That the fake CUDA driver keeps CUDA's rules, as far as the tests of the library rely on it.
#include "fake_cuda.hpp"
#include "gather_on_cpu.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "cuda/gather_plan.hpp"
#include "eventually.hpp"
#include "fake_clock.hpp"

extern "C" unsigned char const gpurx_gather_kernels[];

namespace gpurx::detail {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t granule = std::size_t{2} << 20;

// Whether they do: then nothing happens any more, unless this thread does something.
bool all_others_wait()
{
    return gpurx::test::eventually([] { return gpurx::test::others_sleep(); });
}

// Device 0's primary context, current. What a test leaves behind shows when it ends.
class in_context {
  public:
    in_context()
    {
        fake_cuda::reset();
        REQUIRE(cuInit(0) == CUDA_SUCCESS);
        REQUIRE(cuDevicePrimaryCtxRetain(&context_, 0) == CUDA_SUCCESS);
        REQUIRE(cuCtxPushCurrent(context_) == CUDA_SUCCESS);
    }
    in_context(in_context const&) = delete;
    in_context& operator=(in_context const&) = delete;
    ~in_context()
    {
        cuCtxPopCurrent(nullptr);
        cuDevicePrimaryCtxRelease(0);
        CHECK(fake_cuda::violations() == std::vector<std::string>{});
        CHECK(fake_cuda::live() == fake_cuda::live_counts{});
        CHECK(fake_cuda::current_contexts() == 0);
    }
    [[nodiscard]] CUcontext handle() const { return context_; }

  private:
    CUcontext context_ = nullptr;
};

// Not freed if a test ends before its end: then that shows anyway.
CUdeviceptr allocate(std::size_t size)
{
    CUdeviceptr address = 0;
    REQUIRE(cuMemAlloc(&address, size) == CUDA_SUCCESS);
    return address;
}

void* allocate_host(std::size_t size)
{
    void* pointer = nullptr;
    REQUIRE(cuMemHostAlloc(&pointer, size, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
    return pointer;
}

CUstream make_stream()
{
    CUstream stream = nullptr;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return stream;
}

CUevent make_event()
{
    CUevent event = nullptr;
    REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    return event;
}

CUdeviceptr address_of(void const* pointer)
{
    return reinterpret_cast<CUdeviceptr>(pointer);
}

std::vector<std::uint8_t> pattern(std::size_t size)
{
    std::vector<std::uint8_t> bytes(size);
    std::iota(bytes.begin(), bytes.end(), std::uint8_t{1});
    return bytes;
}

// Whether the process may read there.
bool readable(CUdeviceptr address)
{
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    auto const written = ::write(ends[1], reinterpret_cast<void const*>(address), 1);
    ::close(ends[0]);
    ::close(ends[1]);
    return written == 1;
}

// What a child process says on its standard error that `body` ends with SIGABRT, or that exits with 1 behind it;
// nothing if it does not end so.
template <class Body>
std::string last_words(Body body, bool at_exit = false)
{
    // A child has the locks that other threads held when it was made, and waits for ever for one of those: then it is
    // ended, and another one made.
    int status = 0;
    for (int attempt = 0; attempt < 5; ++attempt) {
        int ends[2];
        REQUIRE(::pipe(ends) == 0);
        auto const child = ::fork();
        if (child == 0) {
            ::signal(SIGABRT, SIG_DFL);  // not Catch's
            ::alarm(8);
            ::dup2(ends[1], STDERR_FILENO);
            body();
            if (at_exit)
                std::exit(0);
            ::_exit(0);
        }
        ::close(ends[1]);
        std::string said(1000, '\0');
        auto const size = ::read(ends[0], said.data(), said.size());
        ::close(ends[0]);
        REQUIRE(::waitpid(child, &status, 0) == child);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
            continue;
        auto const ended = at_exit ? WIFEXITED(status) && WEXITSTATUS(status) == 1
                                   : WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
        said.resize(size > 0 && ended ? static_cast<std::size_t>(size) : 0);
        return said;
    }
    return {};
}

CUmemAllocationProp rdma_memory()
{
    CUmemAllocationProp wish{};
    wish.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wish.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wish.location.id = 0;
    wish.allocFlags.gpuDirectRDMACapable = 1;
    return wish;
}

}  // namespace

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

TEST_CASE("fake CUDA: an event is done when the work before it is, and a wait is for the record of its time")
{
    in_context const context;
    auto const first = make_stream();
    auto const second = make_stream();
    auto const event = make_event();
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);  // never recorded
    auto const address = allocate(64);
    fake_cuda::hold(first);
    REQUIRE(cuMemsetD8Async(address, 7, 64, first) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(event, first) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitEvent(second, event, 0) == CUDA_SUCCESS);
    auto* const copied = static_cast<std::uint8_t*>(allocate_host(64));
    REQUIRE(cuMemcpyDtoHAsync(copied, address, 64, second) == CUDA_SUCCESS);
    REQUIRE(all_others_wait());
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    CHECK(cuStreamQuery(first) == CUDA_ERROR_NOT_READY);
    CHECK(cuStreamQuery(second) == CUDA_ERROR_NOT_READY);
    CHECK(fake_cuda::queued(first) == 2);
    CHECK(fake_cuda::streams().size() == 2);
    REQUIRE(cuEventDestroy(event) == CUDA_SUCCESS);  // the wait goes on
    fake_cuda::let_go(first);
    REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
    CHECK(copied[63] == 7);
    REQUIRE(cuStreamDestroy(first) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(second) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeHost(copied) == CUDA_SUCCESS);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
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

TEST_CASE("fake CUDA: host functions run in order, and a destroyed stream finishes its work")
{
    in_context const context;
    auto const stream = make_stream();
    std::atomic<int> runs{0};
    auto const count = [](void* of) {
        ++*static_cast<std::atomic<int>*>(of);
        int ignored = 0;
        cuDeviceGetCount(&ignored);
    };
    fake_cuda::hold(stream);
    for (int i = 0; i < 3; ++i)
        REQUIRE(cuLaunchHostFunc(stream, count, &runs) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    CHECK(runs == 0);
    CHECK(fake_cuda::live().streams == 0);
    fake_cuda::let_go(stream);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(runs == 3);
    CHECK(fake_cuda::violations().size() == 3);  // CUDA may not be called from there
    fake_cuda::clear_violations();
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

TEST_CASE("fake CUDA: a host function that waits holds up those of all streams")
{
    in_context const context;
    auto const first = make_stream();
    auto const second = make_stream();
    struct meeting {
        std::latch entered{1};
        std::latch leave{1};
        std::atomic<bool> second_ran{false};
    } gates;
    auto const wait = [](void* of) {
        auto& all = *static_cast<meeting*>(of);
        all.entered.count_down();
        all.leave.wait();
    };
    auto const note = [](void* of) { static_cast<meeting*>(of)->second_ran = true; };
    REQUIRE(cuLaunchHostFunc(first, wait, &gates) == CUDA_SUCCESS);
    gates.entered.wait();
    REQUIRE(cuLaunchHostFunc(second, note, &gates) == CUDA_SUCCESS);
    REQUIRE(all_others_wait());
    CHECK_FALSE(gates.second_ran);
    CHECK(fake_cuda::queued(second) == 1);
    gates.leave.count_down();
    REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
    CHECK(gates.second_ran);
    REQUIRE(cuStreamDestroy(first) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(second) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: a stream takes a thousand commands, and who has another one waits, at no other stream")
{
    in_context const context;
    auto const stream = make_stream();
    auto const other = make_stream();
    auto const address = allocate(1);
    fake_cuda::hold(stream);
    std::atomic<int> taken{0};
    std::jthread const fills{[&] {
        cuCtxPushCurrent(context.handle());
        for (; taken < 1001; ++taken)
            cuMemsetD8Async(address, 1, 1, stream);
        cuCtxPopCurrent(nullptr);
    }};
    while (taken < 1000)
        std::this_thread::yield();
    CHECK(cuMemsetD8Async(address, 2, 1, other) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
    REQUIRE(all_others_wait());
    CHECK(taken == 1000);
    fake_cuda::let_go(stream);
    while (taken < 1001)
        std::this_thread::yield();
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(other) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: streams wait for a word each, and not for each other's")
{
    in_context const context;
    auto const first = make_stream();
    auto const second = make_stream();
    auto* const words = static_cast<std::uint32_t*>(allocate_host(2 * sizeof(std::uint32_t)));
    auto const wait = [&](CUstream stream, int word, std::uint32_t value, unsigned flags) {
        return cuStreamWaitValue32(stream, address_of(&words[word]), value, flags);
    };
    REQUIRE(wait(first, 0, 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
    REQUIRE(wait(second, 1, 4, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
    REQUIRE(wait(second, 1, 2, CU_STREAM_WAIT_VALUE_AND) == CUDA_SUCCESS);
    CHECK(cuStreamWaitValue32(first, address_of(words) + 1, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(wait(first, 0, 0, 4) == CUDA_ERROR_INVALID_VALUE);
    std::uint32_t pageable = 0;
    CHECK(cuStreamWaitValue32(first, address_of(&pageable), 0, 0) == CUDA_ERROR_INVALID_VALUE);
    std::atomic_ref{words[1]}.store(6);
    REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(first) == CUDA_ERROR_NOT_READY);
    std::atomic_ref{words[0]}.store(1);
    REQUIRE(cuStreamSynchronize(first) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(first) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(second) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeHost(words) == CUDA_SUCCESS);
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

TEST_CASE("fake CUDA: a stream or an event that is none any more ends the program, and says why")
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

TEST_CASE("fake CUDA: a program ends with the mistakes that nobody has cleared")
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

TEST_CASE("fake CUDA: what a capture does not allow fails, and makes the capture invalid")
{
    in_context const context;
    auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REQUIRE(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
    auto const captured = make_stream();
    auto const other = make_stream();
    auto const inside = make_event();
    auto const outside = make_event();
    auto const address = allocate(1);
    REQUIRE(cuEventRecord(outside, other) == CUDA_SUCCESS);
    auto const status_of = [&] {
        auto status = CU_STREAM_CAPTURE_STATUS_NONE;
        CHECK(cuStreamIsCapturing(captured, &status) == CUDA_SUCCESS);
        return status;
    };
    auto const spoils = [&](auto call, CUresult error) {
        fake_cuda::set_captured(captured, true);
        REQUIRE(cuMemsetD8Async(address, 5, 1, captured) == CUDA_SUCCESS);
        REQUIRE(cuEventRecord(inside, captured) == CUDA_SUCCESS);
        REQUIRE(cuStreamWaitEvent(captured, inside, 0) == CUDA_SUCCESS);
        CHECK(status_of() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        CHECK(call() == error);
        CHECK(status_of() == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        CHECK(cuEventRecord(inside, captured) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        CHECK(fake_cuda::violations().size() == 1);
        fake_cuda::clear_violations();
        fake_cuda::set_captured(captured, false);
    };
    spoils([&] { return cuStreamQuery(captured); }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    spoils([&] { return cuStreamSynchronize(captured); }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    spoils([] { return cuCtxSynchronize(); }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    spoils([&] { return cuStreamWaitEvent(captured, outside, 0); }, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    spoils([&] { return cuEventQuery(inside); }, CUDA_ERROR_CAPTURED_EVENT);
    spoils([&] { return cuEventSynchronize(inside); }, CUDA_ERROR_CAPTURED_EVENT);
    REQUIRE(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
    spoils([&] { return cuEventQuery(outside); }, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuStreamQuery(captured) == CUDA_SUCCESS);  // which was given nothing
    CHECK(fake_cuda::bytes_at(address, 1)[0] == std::byte{0});
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    for (auto* const event : {inside, outside})
        REQUIRE(cuEventDestroy(event) == CUDA_SUCCESS);
    for (auto* const stream : {captured, other})
        REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: a graph does what was captured, in its order, each time that it is launched and not before")
{
    in_context const context;
    auto const captured = make_stream();
    auto const other = make_stream();
    auto const address = allocate(4);
    REQUIRE(cuMemsetD8Async(address, 1, 4, captured) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(captured) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    CHECK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_ILLEGAL_STATE);
    REQUIRE(cuMemsetD8Async(address, 2, 3, captured) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(address, 3, 2, captured) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyAsync(address + 3, address, 1, captured) == CUDA_SUCCESS);
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(other, &graph) == CUDA_ERROR_ILLEGAL_STATE);
    std::jthread{[&] {
        CHECK(cuCtxPushCurrent(context.handle()) == CUDA_SUCCESS);
        CHECK(cuStreamEndCapture(captured, &graph) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }}.join();
    REQUIRE(cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
    CUgraphExec launchable = nullptr;
    REQUIRE(cuGraphInstantiate(&launchable, graph, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(captured) == CUDA_SUCCESS);
    auto const is = [&](std::array<int, 4> const& wanted) {
        auto const* const bytes = fake_cuda::bytes_at(address, 4);
        return std::equal(wanted.begin(), wanted.end(), bytes,
                          [](int value, std::byte byte) { return std::byte(value) == byte; });
    };
    CHECK(is({1, 1, 1, 1}));
    for (auto* const stream : {captured, other}) {
        REQUIRE(cuMemsetD8Async(address, 9, 4, stream) == CUDA_SUCCESS);
        REQUIRE(cuGraphLaunch(launchable, stream) == CUDA_SUCCESS);
        REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        CHECK(is({3, 3, 2, 3}));
    }
    REQUIRE(cuGraphExecDestroy(launchable) == CUDA_SUCCESS);
    CHECK(last_words([&] {
              cuGraphLaunch(launchable, other);
          }).starts_with("fake CUDA: cuGraphLaunch with a handle that was given up"));
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    for (auto* const stream : {captured, other})
        REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: an invalid capture ends without a graph, and its stream can be used again")
{
    in_context const context;
    auto const captured = make_stream();
    REQUIRE(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    std::jthread{[&] {
        CHECK(cuCtxPushCurrent(context.handle()) == CUDA_SUCCESS);
        CHECK(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }}.join();
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(captured, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(graph == nullptr);
    CHECK(fake_cuda::violations() == std::vector<std::string>{"cuCtxSynchronize invalidates a capture"});
    fake_cuda::clear_violations();
    CHECK(cuStreamSynchronize(captured) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(captured) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: a kernel or a library that is none any more ends the program, and says why")
{
    in_context const context;
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    REQUIRE(cuLibraryLoadData(&library, gpurx_gather_kernels, nullptr, nullptr, 0, nullptr, nullptr, 0) ==
            CUDA_SUCCESS);
    REQUIRE(cuLibraryGetKernel(&kernel, library, "gpurx_gather") == CUDA_SUCCESS);
    REQUIRE(cuLibraryUnload(library) == CUDA_SUCCESS);
    auto* const function = reinterpret_cast<CUfunction>(kernel);
    int blocks = 0;
    CHECK(last_words([&] {
              cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
          }).starts_with("fake CUDA: cuLaunchKernel with a handle that was given up"));
    CHECK(last_words([&] {
              cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 32, 0);
          }).starts_with("fake CUDA: cuOccupancyMaxActiveBlocksPerMultiprocessor with a handle"));
    CHECK(last_words([&] {
              cuLibraryGetKernel(&kernel, library, "gpurx_gather");
          }).starts_with("fake CUDA: cuLibraryGetKernel with a handle that was given up"));
    CHECK(last_words([&] { cuLibraryUnload(library); }).starts_with("fake CUDA: cuLibraryUnload with a handle"));
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

TEST_CASE("fake CUDA: what is of two contexts does not go together")
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

TEST_CASE("fake CUDA: what a context is ended with is a mistake, and goes with it")
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

namespace {

struct loaded_kernels {
    CUlibrary library = nullptr;
    CUfunction plain = nullptr;
    CUfunction with_crc = nullptr;

    loaded_kernels()
    {
        auto const load = [&](void const* image) {
            return cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
        };
        CHECK(load("no image of kernels") == CUDA_ERROR_INVALID_IMAGE);
        REQUIRE(load(gpurx_gather_kernels) == CUDA_SUCCESS);
        CUkernel kernel = nullptr;
        REQUIRE(cuLibraryGetKernel(&kernel, library, "gpurx_gather") == CUDA_SUCCESS);
        plain = reinterpret_cast<CUfunction>(kernel);
        REQUIRE(cuLibraryGetKernel(&kernel, library, "gpurx_gather_crc") == CUDA_SUCCESS);
        with_crc = reinterpret_cast<CUfunction>(kernel);
        CHECK(cuLibraryGetKernel(&kernel, library, "gather") == CUDA_ERROR_NOT_FOUND);
    }
};

CUresult launch(CUfunction kernel, CUstream stream, void** parameters, void** extra = nullptr, unsigned block = 256)
{
    return cuLaunchKernel(kernel, 1, 1, 1, block, 1, 1, 0, stream, parameters, extra);
}

std::vector<std::uint8_t> bytes_of(CUdeviceptr address, std::size_t size)
{
    std::vector<std::uint8_t> bytes(size);
    std::memcpy(bytes.data(), fake_cuda::bytes_at(address, size), size);
    return bytes;
}

}  // namespace

TEST_CASE("fake CUDA: the kernels gather, with and without a CRC")
{
    in_context const context;
    loaded_kernels const kernels;
    auto const stream = make_stream();
    auto const sent = pattern(9000);
    auto const source = allocate(sent.size());
    auto const target = allocate(sent.size() + 3);
    auto const tables = allocate(sizeof(crc_tables));
    auto const crc_state = allocate(sizeof(gather_crc_state));
    auto* const result = static_cast<std::uint32_t*>(allocate_host(sizeof(std::uint32_t)));
    auto* const pieces = static_cast<gather_piece*>(allocate_host(3 * sizeof(gather_piece)));
    REQUIRE(cuMemcpyHtoD(source, sent.data(), sent.size()) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoD(tables, &crc_tables_of_gather(), sizeof(crc_tables)) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);  // the stream does not wait for the default one
    pieces[0] = {source + 4001, 4999, 4001};
    pieces[1] = {source, 1000, 0};
    pieces[2] = {source + 1000, 3001, 1000};

    gather_arguments all{pieces, 3, target + 3};
    std::size_t size = sizeof all;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &all, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    CHECK(launch(kernels.plain, stream, nullptr, extra, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(launch(kernels.plain, stream, nullptr, extra, 512) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(launch(kernels.plain, stream, nullptr, extra) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(bytes_of(target + 3, sent.size()) == sent);

    REQUIRE(cuMemsetD8(target, 0, sent.size()) == CUDA_SUCCESS);
    gather_crc_arguments crc{.tables = reinterpret_cast<crc_tables const*>(tables),
                             .state = reinterpret_cast<gather_crc_state*>(crc_state),
                             .result = result,
                             .frame = crc_frame_for(target + 3, sent.size())};
    void* parameters[] = {&all, &crc};
    REQUIRE(launch(kernels.with_crc, stream, parameters) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(bytes_of(target + 3, sent.size()) == sent);
    CHECK(*result == gpurx::test::reference_crc32c(sent));

    fake_cuda::hold(stream);
    REQUIRE(launch(kernels.plain, stream, parameters) == CUDA_SUCCESS);
    REQUIRE(cuMemFree(source) == CUDA_SUCCESS);
    CHECK(fake_cuda::violations() == std::vector<std::string>{"cuMemFree of memory that queued work uses"});
    fake_cuda::clear_violations();
    fake_cuda::let_go(stream);
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuLibraryUnload(kernels.library) == CUDA_SUCCESS);
    for (auto const address : {target, tables, crc_state})
        CHECK(cuMemFree(address) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemFreeHost(pieces) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemFreeHost(result) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuStreamDestroy(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("fake CUDA: the first launch of a kernel waits for all work of its context, the next one does not")
{
    in_context const context;
    loaded_kernels const kernels;
    auto const busy = make_stream();
    auto const stream = make_stream();
    auto const address = allocate(1);
    gather_arguments all{};
    void* parameters[] = {&all};
    auto const hold = [&] {
        fake_cuda::hold(busy);
        REQUIRE(cuMemsetD8Async(address, 1, 1, busy) == CUDA_SUCCESS);
    };
    hold();
    std::atomic<bool> launched{false};
    std::jthread first{[&] {
        cuCtxPushCurrent(context.handle());
        launch(kernels.plain, stream, parameters);
        launched = true;
        cuCtxPopCurrent(nullptr);
    }};
    while (fake_cuda::calls("cuLaunchKernel") == 0)
        std::this_thread::yield();
    REQUIRE(all_others_wait());
    CHECK_FALSE(launched);
    fake_cuda::let_go(busy);
    first.join();
    hold();
    CHECK(launch(kernels.plain, stream, parameters) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(busy) == CUDA_ERROR_NOT_READY);
    fake_cuda::let_go(busy);
    for (auto const each : {busy, stream}) {
        REQUIRE(cuStreamSynchronize(each) == CUDA_SUCCESS);
        REQUIRE(cuStreamDestroy(each) == CUDA_SUCCESS);
    }
    REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
    REQUIRE(cuLibraryUnload(kernels.library) == CUDA_SUCCESS);
}

TEST_CASE("fake CUDA: as many blocks run on a processor as the kernels' registers leave room for")
{
    in_context const context;
    loaded_kernels const kernels;
    for (auto* const kernel : {kernels.plain, kernels.with_crc}) {
        int blocks = 0;
        REQUIRE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 0) == CUDA_SUCCESS);
        CHECK(blocks == 4);
        REQUIRE(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 32, 0) == CUDA_SUCCESS);
        CHECK(blocks == (kernel == kernels.plain ? 32 : 11));
    }
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, kernels.plain, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuLibraryUnload(kernels.library) == CUDA_SUCCESS);
}

TEST_CASE(
    "fake CUDA: a driver that is too old for the kernels takes their image, and refuses them when they are needed")
{
    in_context const context;
    fake_cuda::set_driver_version(12080);
    loaded_kernels const kernels;
    int blocks = 0;
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernels.plain, 256, 0) ==
          CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    CUfunction function = nullptr;
    CHECK(cuKernelGetFunction(&function, reinterpret_cast<CUkernel>(kernels.plain)) ==
          CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    gather_arguments all{};
    void* parameters[] = {&all};
    CHECK(launch(kernels.plain, nullptr, parameters) == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    fake_cuda::set_driver_version(13000);
    CHECK(cuKernelGetFunction(&function, reinterpret_cast<CUkernel>(kernels.plain)) == CUDA_SUCCESS);
    REQUIRE(cuLibraryUnload(kernels.library) == CUDA_SUCCESS);
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
