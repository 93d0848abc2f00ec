// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "clock.hpp"
#include "rivals.hpp"

// The fat binary that rivals.cu was compiled to.
extern "C" unsigned char const gpurx_bench_kernels[];

namespace gpurx::bench {

namespace {

template <class Function>
void find(void* library, char const* name, Function& into)
{
    into = reinterpret_cast<Function>(::dlsym(library, name));
}

more_calls find_more()
{
    more_calls found;
    // The library has it open already.
    auto* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
        throw std::runtime_error{"the CUDA driver is gone"};
#define GPURX_BENCH_TEXT_OF(name) #name
#define GPURX_BENCH_TEXT(name) GPURX_BENCH_TEXT_OF(name)
#define GPURX_BENCH_FIND(name) find(library, GPURX_BENCH_TEXT(name), found.name);
#define GPURX_BENCH_CHECK(name) \
    if (found.name == nullptr)  \
        throw std::runtime_error{"the CUDA driver has no " GPURX_BENCH_TEXT(name)};
    GPURX_BENCH_REQUIRED(GPURX_BENCH_FIND)
    GPURX_BENCH_OPTIONAL(GPURX_BENCH_FIND)
    GPURX_BENCH_REQUIRED(GPURX_BENCH_CHECK)
    // Before 12.8 it had no second version; the call is the same.
    if (found.cuEventElapsedTime == nullptr)
        find(library, "cuEventElapsedTime", found.cuEventElapsedTime);
#undef GPURX_BENCH_CHECK
#undef GPURX_BENCH_FIND
#undef GPURX_BENCH_TEXT
#undef GPURX_BENCH_TEXT_OF
    return found;
}

}  // namespace

void require(CUresult status, char const* operation)
{
    if (status != CUDA_SUCCESS)
        throw std::runtime_error{fmt::format("{}: {}", operation, detail::cuda::error_of(status).message())};
}

device::device(int ordinal) : gpu_{detail::cuda::gpu::open(ordinal)}, scope_{gpu_}, more_{find_more()}
{
    require(scope_.status(), "make the context current");
    auto const status =
        calls().cuLibraryLoadData(&library_, gpurx_bench_kernels, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (status != CUDA_SUCCESS)
        no_library_ = fmt::format("the benchmark's kernels: {}", detail::cuda::error_of(status).message());
}

std::size_t device::free_memory() const noexcept
{
    std::size_t free = 0;
    std::size_t total = 0;
    if (more_.cuMemGetInfo == nullptr || more_.cuMemGetInfo(&free, &total) != CUDA_SUCCESS)
        return 0;
    return free;
}

CUfunction device::kernel(char const* name, std::string& reason) const
{
    reason = no_library_;
    CUkernel found = nullptr;
    if (!reason.empty())
        return nullptr;
    if (auto const status = calls().cuLibraryGetKernel(&found, library_, name); status != CUDA_SUCCESS)
        reason = fmt::format("kernel {}: {}", name, detail::cuda::error_of(status).message());
    return reason.empty() ? reinterpret_cast<CUfunction>(found) : nullptr;
}

void device::launch(CUfunction kernel, unsigned blocks, unsigned threads, std::span<void*> arguments, CUstream on) const
{
    require(calls().cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, on, arguments.data(), nullptr),
            "launch a kernel");
}

stream::stream(device const& on) : on_{on}
{
    require(on_.calls().cuStreamCreate(&handle_, CU_STREAM_NON_BLOCKING), "create a stream");
}

stream::~stream()
{
    static_cast<void>(on_.calls().cuStreamSynchronize(handle_));
    static_cast<void>(on_.more().cuStreamDestroy(handle_));
}

void stream::finish() const
{
    require(on_.calls().cuStreamSynchronize(handle_), "wait for a stream");
}

device_bytes::device_bytes(device const& on, std::size_t size) : on_{on}, size_{size}
{
    require(on_.calls().cuMemAlloc(&address_, size), "allocate memory of the GPU");
}

device_bytes::~device_bytes()
{
    static_cast<void>(on_.calls().cuMemFree(address_));
}

void device_bytes::write(std::span<std::byte const> bytes, std::size_t offset) const
{
    require(on_.more().cuMemcpyHtoD(address_ + offset, bytes.data(), bytes.size()), "copy to the GPU");
    // That may return with the bytes still on their way.
    require(on_.calls().cuStreamSynchronize(nullptr), "wait for a copy to the GPU");
}

void device_bytes::read(std::span<std::byte> bytes, std::size_t offset) const
{
    require(on_.more().cuMemcpyDtoH(bytes.data(), address_ + offset, bytes.size()), "copy from the GPU");
}

pinned_bytes::pinned_bytes(device const& on, std::size_t size) : on_{on}, size_{size}
{
    void* pinned = nullptr;
    require(on_.calls().cuMemHostAlloc(&pinned, size, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
            "pin host memory");
    data_ = static_cast<std::byte*>(pinned);
    std::memset(data_, 0, size);
}

pinned_bytes::~pinned_bytes()
{
    static_cast<void>(on_.calls().cuMemFreeHost(data_));
}

stopwatch::stopwatch(device const& on) : on_{on}
{
    require(on_.calls().cuEventCreate(&first_, CU_EVENT_DEFAULT), "create an event");
    require(on_.calls().cuEventCreate(&second_, CU_EVENT_DEFAULT), "create an event");
}

stopwatch::~stopwatch()
{
    static_cast<void>(on_.calls().cuEventDestroy(first_));
    static_cast<void>(on_.calls().cuEventDestroy(second_));
}

void stopwatch::start(stream const& on)
{
    require(on_.calls().cuEventRecord(first_, on.get()), "record an event");
    started_ = seconds_of(CLOCK_MONOTONIC);
}

void stopwatch::stop(stream const& on)
{
    require(on_.calls().cuEventRecord(second_, on.get()), "record an event");
}

double stopwatch::seconds() const
{
    require(on_.more().cuEventSynchronize(second_), "wait for an event");
    if (!on_.has_event_times())
        return seconds_of(CLOCK_MONOTONIC) - started_;
    float milliseconds = 0;
    require(on_.more().cuEventElapsedTime(&milliseconds, first_, second_), "read the time of events");
    return static_cast<double>(milliseconds) * 1e-3;
}

gate::gate(device const& on, bool with_kernel) : on_{on}, memory_{on, sizeof(words)}
{
    std::string reason;
    if (with_kernel)
        kernel_ = on_.kernel("gpurx_bench_wait", reason);
}

void gate::close(stream const& on)
{
    ++ticket_;
    shared().ticket = ticket_;
    if (kernel_ == nullptr) {
        require(on_.more().cuLaunchHostFunc(on.get(), wait, &shared()), "launch a host function");
        return;
    }
    void* flag = &shared().flag;
    void* expired = &shared().expired;
    std::array<void*, 3> arguments{&flag, &expired, &ticket_};
    on_.launch(kernel_, 1, 1, arguments, on.get());
}

// One gate is closed once at a time, so the ticket is that of the last close().
void gate::wait(void* argument)
{
    auto& all = *static_cast<words*>(argument);
    auto const start = seconds_of(CLOCK_MONOTONIC);
    std::atomic_ref<unsigned> const flag{all.flag};
    while (flag.load() < all.ticket) {
        if (seconds_of(CLOCK_MONOTONIC) - start > static_cast<double>(longest_hold_nanoseconds) * 1e-9) {
            std::atomic_ref{all.expired}.store(all.ticket);
            return;
        }
        std::this_thread::yield();
    }
}

void gate::open() noexcept
{
    std::atomic_ref{shared().flag}.store(ticket_);
}

bool gate::expired() noexcept
{
    return std::atomic_ref{shared().expired}.exchange(0) != 0;
}

}  // namespace gpurx::bench
