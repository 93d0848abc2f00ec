// SPDX-License-Identifier: Apache-2.0
//
// Streams where there is no CUDA, and no need of it.
#include <boost/asio/bind_immediate_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/system_executor.hpp>
#include <boost/asio/use_future.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <gpurx/cuda_stream.hpp>
#include <vector>

namespace gpurx::test {

TEST_CASE("work on host memory without a stream is done: a wait completes at once, but not inside its start")
{
    asio::io_context io{1};
    std::vector<std::byte> bytes(10);
    memory_span const memory{memory_kind::host, reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size()};
    int calls = 0;
    auto const note = [&](error_code code) {
        ++calls;
        CHECK_FALSE(code);
    };
    async_wait(io.get_executor(), {}, memory, note);
    async_wait(io.get_executor(), {}, note);
    CHECK(calls == 0);
    io.run();
    CHECK(calls == 2);
    async_wait(io.get_executor(), {}, asio::bind_immediate_executor(asio::system_executor{}, note));
    CHECK(calls == 3);
}

TEST_CASE("no stream after no stream: there is nothing to do")
{
    order_after({}, {});
}

TEST_CASE("without CUDA a stream fails with no_cuda")
{
    error_code code;
    diagnostics why;
    auto const stream = cuda_stream::on(0, code, why);
    if (stream)
        SKIP("there is a GPU");
    if (code != errc::no_cuda)
        SKIP("there is a driver: " << describe(code, why));
    CHECK(code == errc::no_cuda);
    CHECK_FALSE(why.advice.empty());
    CHECK_THROWS_AS(cuda_stream::on(0), system_error);
    // What somebody takes for a stream.
    cuda_stream_ref const some{reinterpret_cast<CUstream_st*>(&code)};
    order_after(some, {}, code);
    CHECK(code == errc::no_cuda);
    asio::io_context io{1};
    auto waited = async_wait(io.get_executor(), some, asio::use_future);
    io.run();
    CHECK_THROWS_AS(waited.get(), boost::system::system_error);
}

}  // namespace gpurx::test
