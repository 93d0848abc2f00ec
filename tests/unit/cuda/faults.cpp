// SPDX-License-Identifier: Apache-2.0
//
// Flows and gathers on GPUs that lack something, and with drivers that fail.
#include <boost/asio/error.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/gather.hpp>
#include <string>

#include "fake_world.hpp"
#include "memory/page_pool.hpp"

namespace gpurx::test {

using Catch::Matchers::ContainsSubstring;

namespace {

bool const enough_gpus = (fake_cuda::set_devices(all_gpus), true);

struct copying : clean_driver, world {
    copying() : world{transport::copy, {}, memory_on_gpu()} {}
    [[nodiscard]] std::size_t free_pages() const { return session.state().pages().free_count(); }
};

}  // namespace

int fresh_gpu()
{
    static int next = 2;
    REQUIRE(enough_gpus);
    return next++;
}

TEST_CASE("a GPU that nothing was done on yet is asked, too, whether it is in error for good")
{
    clean_driver const clean;
    auto const ordinal = fresh_gpu();
    auto& on = gpu_or_skip(ordinal);
    fake_cuda::break_context(ordinal, CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(on.failure(true) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(on.failure(false) == CUDA_ERROR_ILLEGAL_ADDRESS);
    fake_cuda::break_context(ordinal, CUDA_SUCCESS);
    CHECK(on.failure(true) == CUDA_SUCCESS);
}

TEST_CASE("pages go back when the GPU is in error: nothing reads them any more")
{
    copying in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    auto const all_free = in.free_pages();
    to.send(200000);
    auto loans = receive_all(in, rx, 200000);
    auto const lent = in.free_pages();
    fake_cuda::hold(stream.get());
    auto const broken_before = GENERATE(true, false);
    if (broken_before)
        fake_cuda::break_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    for (auto& loan : loans)
        loan.release_after(stream.ref());
    if (!broken_before) {
        look_at_all_streams();
        CHECK(in.free_pages() == lent);
        fake_cuda::break_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    // All of them: a stream that is asked for must not be destroyed. One page may be the flow's, for what comes next.
    CHECK(soon([&] { return in.free_pages() + 1 >= all_free; }));
    to.send(1000);
    CHECK(receive(in, rx)->code == detail::cuda::error_of(CUDA_ERROR_ILLEGAL_ADDRESS));
    fake_cuda::let_go(stream.get());
    fake_cuda::break_context(0, CUDA_SUCCESS);
}

TEST_CASE("a point that cannot be recorded means waiting for all of the context")
{
    copying in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    auto const all_free = in.free_pages();
    to.send(200000);
    auto loans = receive_all(in, rx, 200000);
    auto const lent = in.free_pages();
    stream.hold();
    auto const* const function = GENERATE("cuEventCreate", "cuEventRecord");
    fake_cuda::fail(function, CUDA_ERROR_OUT_OF_MEMORY, 0, 1000);
    for (auto& loan : loans)
        loan.release_after(stream.ref());
    fake_cuda::fail(function, CUDA_SUCCESS, 0, 0);
    look_at_all_streams();
    CHECK(in.free_pages() == lent);
    stream.let_go();
    // All of them: a stream that is asked for must not be destroyed. One page may be the flow's, for what comes next.
    CHECK(soon([&] { return in.free_pages() + 1 >= all_free; }));
}

TEST_CASE("a stream that is being captured is refused, and pages released after it wait for its end")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    gpu_bytes tensor{on, 5000};
    to.send(5000);
    fake_cuda::set_captured(stream.get(), true);
    auto const got = read(in, rx, tensor.span(), stream.ref());
    CHECK(got->code == errc::unusable_stream);
    CHECK(got->bytes == 0);
    error_code code;
    std::array const fragments{fragment{tensor.address(), 10, memory_kind::device}};
    CHECK(gather(fragments, tensor.span(), stream.ref(), code) == 0);
    CHECK(code == errc::unusable_stream);
    auto loan = std::move(receive(in, rx)->loan);
    CHECK(loan.size() == 5000);
    loan.release_after(stream.ref());
    look_at_all_streams();
    CHECK(in.kernel.tokens_out() > 0);
    fake_cuda::set_captured(stream.get(), false);
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

TEST_CASE("a graph that another thread captures does no harm, and comes to none")
{
    copying in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    gpu_bytes tensor{gpu_or_skip(), 300000};
    fake_cuda::set_capture_elsewhere(true);
    to.send(500000);
    std::size_t got = 0;
    auto const all_free = in.free_pages();
    stream.hold();
    for (; got < 200000;) {
        auto loan = std::move(receive(in, rx)->loan);
        got += loan.size();
        loan.release_after(stream.ref());
    }
    look_at_all_streams();
    CHECK(in.free_pages() < all_free);
    stream.let_go();
    CHECK(soon([&] { return in.free_pages() + 1 >= all_free; }));
    auto const size = 500000 - got;
    REQUIRE(read(in, rx, tensor.span().first(size), stream.ref())->bytes == size);
    fake_cuda::set_capture_elsewhere(false);
    stream.finish();
}

TEST_CASE("a failed query of a stream does not count as passed")
{
    copying in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    auto const all_free = in.free_pages();
    to.send(200000);
    auto loans = receive_all(in, rx, 200000);
    auto const lent = in.free_pages();
    stream.hold();
    auto const* const function = GENERATE("cuEventQuery", "cuStreamGetCtx", "cuStreamIsCapturing");
    fake_cuda::fail(function, CUDA_ERROR_SYSTEM_NOT_READY, 0, 1000000);
    for (auto& loan : loans)
        loan.release_after(stream.ref());
    // Some looks, of which none tells anything.
    auto const looks = fake_cuda::calls("cuCtxPopCurrent");
    CHECK(soon([&] { return fake_cuda::calls("cuCtxPopCurrent") >= looks + 5; }));
    CHECK(in.free_pages() == lent);
    fake_cuda::fail(function, CUDA_SUCCESS, 0, 0);
    stream.let_go();
    CHECK(soon([&] { return in.free_pages() + 1 >= all_free; }));
}

TEST_CASE("staging that cannot be had is an error, and the flow goes on when it can")
{
    copying in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    to.send(1000);
    fake_cuda::fail("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(receive(in, rx)->code == detail::cuda::error_of(CUDA_ERROR_OUT_OF_MEMORY));
    auto const got = receive(in, rx);
    REQUIRE_FALSE(got->code);
    CHECK(is_pattern(read_loan(gpu_or_skip(), stream, got->loan), 0));
    to.send(1000);
    fake_cuda::fail("cuMemcpyHtoDAsync", CUDA_ERROR_UNKNOWN);
    CHECK(receive(in, rx)->code == detail::cuda::error_of(CUDA_ERROR_UNKNOWN));
    // Bytes have left the socket and are nowhere: the stream has a hole.
    to.send(1000);
    CHECK(receive(in, rx)->code == detail::cuda::error_of(CUDA_ERROR_UNKNOWN));
    CHECK(in.free_pages() > 0);
}

TEST_CASE("memory is not freed under bytes that are on their way into it")
{
    copying in;
    sender to{in.wires};
    auto rx = in.flow(to);
    fake_cuda::set_delay_per_byte(std::chrono::duration<double, std::nano>{200});
    to.send(100000);
    CHECK_FALSE(receive(in, rx)->code);
}

TEST_CASE("a stream that is another in each thread is refused for reads")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_bytes tensor{gpu_or_skip(), 100};
    to.send(100);
    CHECK(read(in, rx, tensor.span(), cuda_stream_ref{CU_STREAM_PER_THREAD})->code == errc::unusable_stream);
    CHECK_FALSE(read(in, rx, tensor.span(), cuda_stream_ref{CU_STREAM_LEGACY})->code);
    detail::cuda::context_scope const scope{gpu_or_skip()};
    CHECK(GPURX_DRIVER(cuCtxSynchronize)() == CUDA_SUCCESS);
}

TEST_CASE("bytes on another GPU are gathered once they are there")
{
    clean_driver const clean;
    world in{transport::copy, {}, {detail::make_gpu_memory(1, 8 << 20), {}}};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& here = gpu_or_skip(0);
    gpu_test_stream stream{here};
    gpu_bytes tensor{here, 100000};
    to.send(100000);
    fake_cuda::set_delay_per_byte(std::chrono::duration<double, std::nano>{100});
    std::size_t at = 0;
    while (at < 100000) {
        auto loan = std::move(receive(in, rx)->loan);
        REQUIRE(gather(loan.fragments(), tensor.span().subspan(at, loan.size()), stream.ref()) == loan.size());
        at += loan.size();
        loan.release_after(stream.ref());
    }
    stream.finish();
    fake_cuda::set_delay_per_byte({});
    CHECK(is_pattern(tensor.read(), 0));
}

TEST_CASE("without the kernels a gather is made of the driver's copies")
{
    clean_driver const clean;
    auto& on = gpu_or_skip(fresh_gpu());
    fake_cuda::fail("cuLibraryLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU, 0, 1000);
    gpu_bytes source{on, 10000};
    gpu_bytes destination{on, 10000};
    gpu_test_stream stream{on};
    source.write(pattern(0, 10000));
    std::array const fragments{fragment{source.address(), 4001, memory_kind::device},
                               fragment{source.address() + 4001, 5999, memory_kind::device}};
    REQUIRE(gather(fragments, destination.span(), stream.ref()) == 10000);
    stream.finish();
    CHECK(is_pattern(destination.read(), 0));
    std::vector<std::byte> here(10000);
    memory_span const host{memory_kind::host, reinterpret_cast<std::uintptr_t>(here.data()), here.size()};
    REQUIRE(gather(fragments, host) == 10000);
    CHECK(is_pattern(here, 0));
    error_code code;
    CHECK(gather_crc32c(fragments, destination.span(), source.span().first(4), stream.ref(), code) == 0);
    CHECK(code == detail::cuda::error_of(CUDA_ERROR_NO_BINARY_FOR_GPU));
}

TEST_CASE("a driver that refuses the kernels is asked once, and each error has its reason")
{
    clean_driver const clean;
    auto& on = gpu_or_skip(fresh_gpu());
    std::string const refused = GENERATE("cuLibraryLoadData", "cuLibraryGetKernel", "");
    if (refused.empty())
        fake_cuda::set_driver_version(12000);  // it takes the image, and none of the kernels in it
    else
        fake_cuda::fail(refused, CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 0, 1000);
    gpu_bytes source{on, 100};
    gpu_bytes destination{on, 100};
    gpu_test_stream stream{on};
    source.write(pattern(0, 100));
    auto const loaded = fake_cuda::live().libraries;
    std::array const fragments{fragment{source.address(), 100, memory_kind::device}};
    for (int i = 0; i < 3; ++i)
        REQUIRE(gather(fragments, destination.span(), stream.ref()) == 100);
    error_code code;
    for (int i = 0; i < 2; ++i) {
        CHECK(gather_crc32c(fragments, destination.span(), source.span().first(4), stream.ref(), code) == 0);
        CHECK(code == detail::cuda::error_of(CUDA_ERROR_UNSUPPORTED_PTX_VERSION));
    }
    stream.finish();
    CHECK(is_pattern(destination.read(), 0));
    CHECK(fake_cuda::calls("cuLibraryLoadData") == 1);
    CHECK(fake_cuda::calls("cuLaunchKernel") == 0);
    CHECK(fake_cuda::live().libraries == loaded);
}

TEST_CASE("kernels for which there was no memory are loaded when there is")
{
    clean_driver const clean;
    auto& on = gpu_or_skip(fresh_gpu());
    fake_cuda::fail("cuLibraryLoadData", CUDA_ERROR_OUT_OF_MEMORY);
    gpu_bytes source{on, 100};
    gpu_bytes destination{on, 100};
    gpu_test_stream stream{on};
    std::array const fragments{fragment{source.address(), 100, memory_kind::device}};
    REQUIRE(gather(fragments, destination.span(), stream.ref()) == 100);
    CHECK(fake_cuda::calls("cuLaunchKernel") == 0);
    REQUIRE(gather(fragments, destination.span(), stream.ref()) == 100);
    CHECK(fake_cuda::calls("cuLaunchKernel") >= 1);
    stream.finish();
}

TEST_CASE("an error of the driver about a gather is the read's error, and the bytes stay in the stream")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    gpu_bytes tensor{on, 5000};
    to.send(5000);
    fake_cuda::fail("cuLaunchKernel", CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    auto const got = read(in, rx, tensor.span(), stream.ref());
    CHECK(got->code == detail::cuda::error_of(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
    CHECK(got->bytes == 0);
    CHECK_FALSE(read(in, rx, tensor.span(), stream.ref())->code);
    stream.finish();
    CHECK(is_pattern(tensor.read(), 0));
}

TEST_CASE("a stream of a context of the program's own is served in it")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    CUcontext own = nullptr;
    REQUIRE(GPURX_DRIVER(cuCtxCreate)(&own, nullptr, 0, on.device()) == CUDA_SUCCESS);
    {
        CUstream stream = nullptr;
        REQUIRE(on.calls().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        CUcontext popped = nullptr;
        REQUIRE(on.calls().cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
        nic_into_gpu in;
        sender to{in.wires};
        auto rx = in.flow(to);
        gpu_bytes tensor{on, 5000};
        to.send(9000);
        CHECK_FALSE(read(in, rx, tensor.span(), stream)->code);
        auto loan = std::move(receive(in, rx)->loan);
        loan.acquire(stream);
        loan.release_after(stream);
        CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
        CHECK(is_pattern(tensor.read(), 0));
        REQUIRE(on.calls().cuCtxPushCurrent(own) == CUDA_SUCCESS);
        REQUIRE(GPURX_DRIVER(cuStreamDestroy)(stream) == CUDA_SUCCESS);
        REQUIRE(on.calls().cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
    }
}

TEST_CASE("an old driver is named by what it lacks, and one that does not start by its error")
{
    CHECK_THAT(detail::cuda::error_of(CUDA_ERROR_NO_DEVICE).message(), ContainsSubstring("CUDA_ERROR_NO_DEVICE"));
    CHECK_THAT(cuda_category().message(123456), ContainsSubstring("CUDA error 123456"));
    CHECK(std::string{cuda_category().name()} == "cuda");
}

}  // namespace gpurx::test
