// SPDX-License-Identifier: Apache-2.0
//
// Points in streams, where a stream or its GPU is not as it should be.
#include <boost/asio/error.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <gpurx/cuda_stream.hpp>

#include "fake_world.hpp"

namespace gpurx::test {

namespace {}  // namespace

TEST_CASE("pages go back after each error that ends a GPU's work")
{
    devmem_on_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    auto const error = GENERATE(static_cast<CUresult>(226),  // CUDA_ERROR_CONTAINED, of cuda.h 12.9
                                static_cast<CUresult>(721),  // CUDA_ERROR_TENSOR_MEMORY_LEAK, the same
                                CUDA_ERROR_EXTERNAL_DEVICE, CUDA_ERROR_MPS_RPC_FAILURE,
                                CUDA_ERROR_MPS_CLIENT_TERMINATED, CUDA_ERROR_UNKNOWN);
    to.send(5000);
    auto loan = std::move(receive(in, rx)->loan);
    fake_cuda::hold(stream.get());
    loan.release_after(stream.ref());
    auto const synchronised = fake_cuda::calls("cuCtxSynchronize");
    fake_cuda::break_context(0, error);
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
    CHECK(fake_cuda::calls("cuCtxSynchronize") == synchronised);
    fake_cuda::let_go(stream.get());
    fake_cuda::break_context(0, CUDA_SUCCESS);
}

TEST_CASE("a wait tells the error that its stream ended with, when nobody else is told")
{
    clean_driver const clean;
    auto const stream = cuda_stream::on(0);
    fake_cuda::hold(stream.get());
    asio::io_context io{1};
    error_code result = asio::error::timed_out;
    async_wait(io.get_executor(), stream, [&](error_code code) { result = code; });
    // The first to ask is told, and only what asks for the stream is an answer about it.
    fake_cuda::break_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    fake_cuda::fail("cuStreamIsCapturing", CUDA_SUCCESS, 0, 1000);
    io.run_for(5s);
    CHECK(result == detail::cuda::error_of(CUDA_ERROR_ILLEGAL_ADDRESS));
    fake_cuda::let_go(stream.get());
    std::this_thread::sleep_for(20ms);
    fake_cuda::break_context(0, CUDA_SUCCESS);
}

TEST_CASE("pages released after a stream that is being captured leave the capture alone, and other streams too")
{
    devmem_on_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_test_stream captured{on};
    gpu_test_stream other{on};
    to.send(5000);
    auto first = std::move(receive(in, rx)->loan);
    fake_cuda::set_captured(captured.get(), true);
    first.release_after(captured.ref());
    std::this_thread::sleep_for(5ms);
    CHECK(in.kernel.tokens_out() > 0);
    // One thread waits for all streams: what is behind another one comes back meanwhile.
    auto const parked = in.kernel.tokens_out();
    to.send(5000);
    receive(in, rx)->loan.release_after(other.ref());
    CHECK(soon([&] { return in.kernel.tokens_out() == parked; }));
    // Work that the stream gets before its capture ends is not waited for; what it gets before it is looked at is.
    captured.hold();
    fake_cuda::set_captured(captured.get(), false);
    std::this_thread::sleep_for(5ms);
    CHECK(in.kernel.tokens_out() == parked);
    captured.let_go();
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

}  // namespace gpurx::test
