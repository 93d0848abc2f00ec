// SPDX-License-Identifier: Apache-2.0
//
// What the tests of GPU memory stand on: the CUDA driver's own calls, and nothing of the fake driver, so that the same
// program tests with it and on a real GPU.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gpurx/memory.hpp>
#include <gpurx/rx_buffer.hpp>
#include <gpurx/views.hpp>

#include "cuda/gpu.hpp"

namespace gpurx::test {

// Skips the test where there is no GPU, with the reason.
[[nodiscard]] detail::cuda::gpu& gpu_or_skip(int ordinal = 0);

// A function of the driver's that the library does not use; null if it has none of this name.
[[nodiscard]] void* driver_function(char const* name);
#define GPURX_DRIVER_TEXT_OF(name) #name
#define GPURX_DRIVER_TEXT(name) GPURX_DRIVER_TEXT_OF(name)
#define GPURX_DRIVER(name) reinterpret_cast<decltype(&::name)>(::gpurx::test::driver_function(GPURX_DRIVER_TEXT(name)))

// A stream of the primary context.
class gpu_test_stream {
  public:
    explicit gpu_test_stream(detail::cuda::gpu& on);
    gpu_test_stream(gpu_test_stream const&) = delete;
    gpu_test_stream& operator=(gpu_test_stream const&) = delete;
    ~gpu_test_stream();

    [[nodiscard]] cuda_stream_ref ref() const { return handle_; }
    [[nodiscard]] CUstream get() const { return handle_; }
    // What is enqueued from now on waits until let_go(). Once. The first of all launches the library's kernels before.
    void hold();
    void let_go();
    // Waits until all of it has run.
    void finish();

  private:
    detail::cuda::gpu& on_;
    CUstream handle_ = nullptr;
    std::uint32_t* gate_ = nullptr;  // of a stream that was held; 1 once it is let go
};

// Memory of a GPU, from cuMemAlloc.
class gpu_bytes {
  public:
    gpu_bytes(detail::cuda::gpu& on, std::size_t size, std::byte fill = std::byte{0xee});
    gpu_bytes(gpu_bytes const&) = delete;
    gpu_bytes& operator=(gpu_bytes const&) = delete;
    ~gpu_bytes();

    [[nodiscard]] std::uintptr_t address() const { return address_; }
    [[nodiscard]] memory_span span() const { return {memory_kind::device, address_, size_}; }
    void write(std::span<std::byte const> bytes, std::size_t offset = 0);
    [[nodiscard]] std::vector<std::byte> read() const;

  private:
    detail::cuda::gpu& on_;
    CUdeviceptr address_ = 0;
    std::size_t size_;
};

// Returns when the library has asked for each stream that somebody waits for, and has told who waits for one that has
// passed. `passes`: a stream that does; by default one that nobody has to make, and to wait for at its end.
void look_at_all_streams(CUstream passes = CU_STREAM_PER_THREAD);

// Bytes of a GPU or of the host, as they are now; waits for nothing but the copy.
[[nodiscard]] std::vector<std::byte> read_bytes(detail::cuda::gpu& on, std::uintptr_t address, std::size_t size);
// All of a loan, as a stream sees it that acquired it.
[[nodiscard]] std::vector<std::byte> read_loan(detail::cuda::gpu& on, gpu_test_stream& stream, rx_buffer& loan);

}  // namespace gpurx::test
