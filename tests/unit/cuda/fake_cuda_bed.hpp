// SPDX-License-Identifier: Apache-2.0
//
// For tests of the fake CUDA driver by itself.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "eventually.hpp"
#include "fake_clock.hpp"
#include "fake_cuda.hpp"

namespace gpurx::detail {

using namespace std::chrono_literals;

inline constexpr std::size_t granule = std::size_t{2} << 20;

// Whether they do: then nothing happens any more, unless this thread does something.
inline bool all_others_wait()
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
inline CUdeviceptr allocate(std::size_t size)
{
    CUdeviceptr address = 0;
    REQUIRE(cuMemAlloc(&address, size) == CUDA_SUCCESS);
    return address;
}

inline void* allocate_host(std::size_t size)
{
    void* pointer = nullptr;
    REQUIRE(cuMemHostAlloc(&pointer, size, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
    return pointer;
}

inline CUstream make_stream()
{
    CUstream stream = nullptr;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return stream;
}

inline CUevent make_event()
{
    CUevent event = nullptr;
    REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    return event;
}

inline CUdeviceptr address_of(void const* pointer)
{
    return reinterpret_cast<CUdeviceptr>(pointer);
}

inline std::vector<std::uint8_t> pattern(std::size_t size)
{
    std::vector<std::uint8_t> bytes(size);
    std::iota(bytes.begin(), bytes.end(), std::uint8_t{1});
    return bytes;
}

// Whether the process may read there.
inline bool readable(CUdeviceptr address)
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

inline CUmemAllocationProp rdma_memory()
{
    CUmemAllocationProp wish{};
    wish.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wish.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wish.location.id = 0;
    wish.allocFlags.gpuDirectRDMACapable = 1;
    return wish;
}

}  // namespace gpurx::detail
