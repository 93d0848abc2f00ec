// SPDX-License-Identifier: Apache-2.0
//
// Tests that ask the fake driver what it was asked, or have it fail.
#pragma once

#include <catch2/catch_test_macros.hpp>

#include "../../gpu/bed.hpp"
#include "../../gpu/loopback.hpp"
#include "fake_cuda.hpp"

namespace gpurx::test {

// The driver as it is after its start, and nothing wrong with its use at the end. The context that the
// caller had stays current.
struct clean_driver {
    clean_driver() : contexts_{fake_cuda::current_contexts()}
    {
        fake_cuda::reset_settings();
        static_cast<void>(gpu_or_skip());
    }
    clean_driver(clean_driver const&) = delete;
    clean_driver& operator=(clean_driver const&) = delete;
    ~clean_driver()
    {
        CHECK(fake_cuda::current_contexts() == contexts_);
        CHECK(fake_cuda::violations() == std::vector<std::string>{});
        fake_cuda::reset_settings();
    }

  private:
    std::size_t contexts_;
};

// What a GPU is like is read once: each test of it takes one that no other test opens.
inline constexpr int all_gpus = 24;
[[nodiscard]] int fresh_gpu();

[[nodiscard]] inline CUstreamCaptureStatus capture_of(gpu_test_stream const& stream)
{
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    auto& on = gpu_or_skip();
    detail::cuda::context_scope const scope{on};
    REQUIRE(on.calls().cuStreamIsCapturing(stream.get(), &status) == CUDA_SUCCESS);
    return status;
}

// A stream that stands still with something to do.
struct stalled_stream {
    explicit stalled_stream(int ordinal = 0) : on{gpu_or_skip(ordinal)}
    {
        static_cast<void>(on.gather());  // to load the kernels waits for all streams
        fake_cuda::hold(stream.get());
        detail::cuda::context_scope const scope{on};
        REQUIRE(on.calls().cuMemsetD8Async(bytes.address(), 0, 1, stream.get()) == CUDA_SUCCESS);
    }
    stalled_stream(stalled_stream const&) = delete;
    stalled_stream& operator=(stalled_stream const&) = delete;
    ~stalled_stream() { let_go(); }

    void let_go()
    {
        fake_cuda::let_go(stream.get());
        stream.finish();
    }

    detail::cuda::gpu& on;
    gpu_bytes bytes{on, 4096};
    gpu_test_stream stream{on};
};

// A GPU's memory for a session; the fake NIC writes it behind the CPU's back.
[[nodiscard]] inline session_memory memory_on_gpu(std::size_t bytes = 8 << 20, int ordinal = 0)
{
    auto state = detail::make_gpu_memory(ordinal, bytes);
    auto const span = state->span();
    return {std::move(state), {fake_cuda::bytes_at(span.address(), span.size()), span.size()}};
}

// A GPU's memory that the NIC writes into.
struct nic_into_gpu : clean_driver, world {
    explicit nic_into_gpu(transport kind = nic_transport()) : world{kind, {}, memory_on_gpu()} {}
    nic_into_gpu(nic_into_gpu const&) = delete;
    nic_into_gpu& operator=(nic_into_gpu const&) = delete;
    // Pages that wait for a stream have to be back before the fake kernel looks.
    ~nic_into_gpu()
    {
        static_cast<void>(soon([this] { return kernel.tokens_out() == 0; }));
    }
};

}  // namespace gpurx::test
