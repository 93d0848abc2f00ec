// SPDX-License-Identifier: Apache-2.0
//
// Streams of one's own, their order, and waits for them.
#include <boost/asio/error.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/cuda_stream.hpp>
#include <thread>

#include "fake_world.hpp"

namespace gpurx::test {

using Catch::Matchers::ContainsSubstring;

namespace {

error_code waited_for(cuda_stream_ref stream)
{
    asio::io_context io{1};
    error_code result = asio::error::timed_out;
    async_wait(io.get_executor(), stream, [&](error_code code) { result = code; });
    io.run_for(60s);
    return result;
}

}  // namespace

TEST_CASE("streams of one's own and waits leave nothing behind")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    auto const known = fake_cuda::streams().size();
    CHECK_FALSE(waited_for(cuda_stream::on(0)));
    {
        auto const first = cuda_stream::on(0);
        auto const second = cuda_stream::on(0);
        fake_cuda::hold(second.get());
        order_after(first, second);
        order_after({}, first);
        CHECK(soon([&] { return fake_cuda::streams().size() == known + 2; }));
        fake_cuda::let_go(second.get());
        CHECK_FALSE(waited_for(first));
    }
    CHECK(soon([&] { return fake_cuda::streams().size() == known; }));
    detail::cuda::context_scope const scope{on};
    CHECK(GPURX_DRIVER(cuCtxSynchronize)() == CUDA_SUCCESS);
}

TEST_CASE("a stream that is dropped keeps its handle until it has passed")
{
    clean_driver const clean;
    static_cast<void>(gpu_or_skip());
    auto const known = fake_cuda::streams().size();
    auto stream = cuda_stream::on(0);
    auto* const handle = stream.get();
    fake_cuda::hold(handle);
    auto const later = cuda_stream::on(0);
    order_after(later, stream);
    stream = {};
    look_at_all_streams();
    CHECK(fake_cuda::streams().size() == known + 2);
    fake_cuda::let_go(handle);
    CHECK(soon([&] { return fake_cuda::streams().size() == known + 1; }));
}

TEST_CASE("a stream that cannot be used is an error with the reason")
{
    clean_driver const clean;
    fake_cuda::fail("cuStreamCreate", CUDA_ERROR_OUT_OF_MEMORY);
    error_code code;
    diagnostics why;
    CHECK_FALSE(cuda_stream::on(0, code, why));
    CHECK_THAT(describe(code, why),
               ContainsSubstring("create a stream of GPU 0") && ContainsSubstring("out of memory"));
}

TEST_CASE("an order that the driver refuses is an error, and leaves nothing behind")
{
    clean_driver const clean;
    auto const first = cuda_stream::on(0);
    auto const second = cuda_stream::on(0);
    order_after(second, first);
    auto const before = fake_cuda::live();
    auto const* const function =
        GENERATE("cuStreamWaitEvent", "cuEventRecord", "cuStreamGetCtx", "cuStreamIsCapturing", "cuCtxPushCurrent");
    fake_cuda::fail_here(function, CUDA_ERROR_UNKNOWN);
    error_code code;
    order_after(second, first, code);
    CHECK(code == detail::cuda::error_of(CUDA_ERROR_UNKNOWN));
    CHECK(fake_cuda::live().events <= before.events);
    CHECK_NOTHROW(order_after(second, first));
}

TEST_CASE("an order without an event for it is an error")
{
    clean_driver const clean;
    auto const stream = cuda_stream::on(1);  // of whose context no event is in store
    fake_cuda::fail("cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_THROWS_AS(order_after({}, stream), system_error);
}

TEST_CASE("a stream that is being captured, or another in each thread, is neither ordered nor waited for")
{
    clean_driver const clean;
    auto const captured = cuda_stream::on(0);
    auto const other = cuda_stream::on(0);
    fake_cuda::set_captured(captured.get(), true);
    error_code code;
    order_after(captured, other, code);
    CHECK(code == errc::unusable_stream);
    order_after(other, captured, code);
    CHECK(code == errc::unusable_stream);
    CHECK(waited_for(captured) == errc::unusable_stream);
    CHECK(waited_for(CU_STREAM_PER_THREAD) == errc::unusable_stream);
    fake_cuda::set_captured(captured.get(), false);
}

TEST_CASE("a wait ends with the GPU's error")
{
    clean_driver const clean;
    auto const stream = cuda_stream::on(0);
    fake_cuda::hold(stream.get());
    auto const broken_before = GENERATE(true, false);
    if (broken_before)
        fake_cuda::break_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    {
        auto const before = fake_cuda::calls("cuEventQuery");
        std::jthread const breaker{[&] {
            // Once somebody has asked for the stream, and so waits.
            if (!broken_before && soon([&] { return fake_cuda::calls("cuEventQuery") > before; }))
                fake_cuda::break_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
        }};
        CHECK(waited_for(stream) == detail::cuda::error_of(CUDA_ERROR_ILLEGAL_ADDRESS));
    }
    fake_cuda::let_go(stream.get());
    CHECK(soon([&] { return fake_cuda::queued(stream.get()) == 0; }));
    fake_cuda::break_context(0, CUDA_SUCCESS);
}

TEST_CASE("streams of two GPUs are ordered")
{
    clean_driver const clean;
    auto const here = cuda_stream::on(0);
    auto const there = cuda_stream::on(1);
    fake_cuda::hold(there.get());
    order_after(here, there);
    CHECK(fake_cuda::queued(here.get()) > 0);
    fake_cuda::let_go(there.get());
    CHECK(soon([&] { return fake_cuda::queued(here.get()) == 0; }));
}

}  // namespace gpurx::test
