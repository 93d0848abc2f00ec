// SPDX-License-Identifier: Apache-2.0
//
// The GPU that is measured, through the CUDA driver alone.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <gpurx/views.hpp>

#include "cuda/gpu.hpp"

namespace gpurx::bench {

// Functions of the driver's that the library does not use.
// clang-format off
#define GPURX_BENCH_REQUIRED(function) \
    function(cuStreamDestroy)          \
    function(cuLaunchHostFunc)         \
    function(cuEventSynchronize)       \
    function(cuMemsetD8Async)          \
    function(cuMemcpyHtoD)             \
    function(cuMemcpyDtoH)
// Null where the driver has none: it is too old, or the fake one.
#define GPURX_BENCH_OPTIONAL(function) \
    function(cuEventElapsedTime)       \
    function(cuGetProcAddress)         \
    function(cuMemGetInfo)             \
    function(cuDeviceGetPCIBusId)
// clang-format on

struct more_calls {
#define GPURX_BENCH_DECLARE(name) decltype(&::name) name = nullptr;
    GPURX_BENCH_REQUIRED(GPURX_BENCH_DECLARE)
    GPURX_BENCH_OPTIONAL(GPURX_BENCH_DECLARE)
#undef GPURX_BENCH_DECLARE
};

// Throws what the driver says if it is not success.
void require(CUresult status, char const* operation);

// Its primary context is current in the thread that made it, while it lives.
class device {
  public:
    // Throws system_error where there is none.
    explicit device(int ordinal);
    device(device const&) = delete;
    device& operator=(device const&) = delete;
    ~device() = default;

    [[nodiscard]] detail::cuda::gpu& gpu() const noexcept { return gpu_; }
    [[nodiscard]] detail::cuda::driver const& calls() const noexcept { return gpu_.calls(); }
    [[nodiscard]] more_calls const& more() const noexcept { return more_; }
    // Without it GPU times are the CPU's, and streams are not held while they are filled.
    [[nodiscard]] bool has_event_times() const noexcept { return more_.cuEventElapsedTime != nullptr; }
    [[nodiscard]] std::size_t free_memory() const noexcept;

    // Of rivals.cu. Null: `reason` says why.
    [[nodiscard]] CUfunction kernel(char const* name, std::string& reason) const;
    void launch(CUfunction kernel, unsigned blocks, unsigned threads, std::span<void*> arguments, CUstream on) const;

  private:
    detail::cuda::gpu& gpu_;
    detail::cuda::context_scope scope_;
    more_calls more_;
    CUlibrary library_ = nullptr;
    std::string no_library_;
};

class stream {
  public:
    explicit stream(device const& on);
    stream(stream const&) = delete;
    stream& operator=(stream const&) = delete;
    ~stream();

    [[nodiscard]] CUstream get() const noexcept { return handle_; }
    [[nodiscard]] cuda_stream_ref ref() const noexcept { return handle_; }
    void finish() const;

  private:
    device const& on_;
    CUstream handle_ = nullptr;
};

class device_bytes {
  public:
    device_bytes(device const& on, std::size_t size);
    device_bytes(device_bytes const&) = delete;
    device_bytes& operator=(device_bytes const&) = delete;
    ~device_bytes();

    [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }
    [[nodiscard]] memory_span span() const noexcept { return {memory_kind::device, address_, size_}; }
    void write(std::span<std::byte const> bytes, std::size_t offset = 0) const;
    void read(std::span<std::byte> bytes, std::size_t offset = 0) const;

  private:
    device const& on_;
    CUdeviceptr address_ = 0;
    std::size_t size_;
};

class pinned_bytes {
  public:
    pinned_bytes(device const& on, std::size_t size);
    pinned_bytes(pinned_bytes const&) = delete;
    pinned_bytes& operator=(pinned_bytes const&) = delete;
    ~pinned_bytes();

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

  private:
    device const& on_;
    std::byte* data_ = nullptr;
    std::size_t size_;
};

// The time between two points of a stream.
class stopwatch {
  public:
    explicit stopwatch(device const& on);
    stopwatch(stopwatch const&) = delete;
    stopwatch& operator=(stopwatch const&) = delete;
    ~stopwatch();

    void start(stream const& on);
    void stop(stream const& on);
    // Waits for the second point.
    [[nodiscard]] double seconds() const;

  private:
    device const& on_;
    CUevent first_ = nullptr;
    CUevent second_ = nullptr;
    double started_ = 0;
};

// Holds up a stream: by a kernel that looks at a word of the host's, or, where there are no kernels of ours, by a
// function that the driver calls.
class gate {
  public:
    explicit gate(device const& on, bool with_kernel = true);
    gate(gate const&) = delete;
    gate& operator=(gate const&) = delete;
    ~gate() { open(); }

    [[nodiscard]] bool is_kernel() const noexcept { return kernel_ != nullptr; }
    // What is enqueued on `on` from now on waits until open().
    void close(stream const& on);
    void open() noexcept;
    // Whether it opened by itself, after two seconds.
    [[nodiscard]] bool expired() noexcept;

  private:
    struct words {
        unsigned flag;
        unsigned expired;
        unsigned ticket;
    };
    [[nodiscard]] words& shared() const noexcept { return *reinterpret_cast<words*>(memory_.data()); }
    static void wait(void* argument);

    device const& on_;
    pinned_bytes memory_;
    CUfunction kernel_ = nullptr;
    unsigned ticket_ = 0;
};

}  // namespace gpurx::bench
