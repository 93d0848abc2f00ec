// SPDX-License-Identifier: Apache-2.0
//
// Points in streams, where a stream or its GPU is not as it should be, or a program captures a stream into a graph.
#include <boost/asio/error.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <gpurx/cuda_stream.hpp>
#include <gpurx/gather.hpp>

#include "cuda/stream_point.hpp"
#include "fake_world.hpp"

namespace gpurx::test {

namespace {

void give_work(gpu_test_stream const& stream, gpu_bytes const& to, std::size_t count = 1)
{
    auto& on = gpu_or_skip();
    detail::cuda::context_scope const scope{on};
    while (count-- > 0)
        REQUIRE(on.calls().cuMemsetD8Async(to.address(), 0, 1, stream.get()) == CUDA_SUCCESS);
}

}  // namespace

TEST_CASE("pages go back after each error that ends a GPU's work")
{
    nic_into_gpu in;
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

TEST_CASE("a wait reports the error that ended its stream, if no other operation does")
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
    io.run_for(60s);
    CHECK(result == detail::cuda::error_of(CUDA_ERROR_ILLEGAL_ADDRESS));
    fake_cuda::let_go(stream.get());
    CHECK(soon([&] { return fake_cuda::queued(stream.get()) == 0; }));
    fake_cuda::break_context(0, CUDA_SUCCESS);
}

TEST_CASE("pages released after a stream that is being captured leave the capture alone, and other streams too")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_test_stream captured{on};
    gpu_test_stream other{on};
    to.send(5000);
    auto first = std::move(receive(in, rx)->loan);
    captured.hold();
    fake_cuda::set_captured(captured.get(), true);
    first.release_after(captured.ref());
    look_at_all_streams();
    CHECK(in.kernel.tokens_out() > 0);
    // One thread waits for all streams: what is behind another one comes back meanwhile.
    auto const parked = in.kernel.tokens_out();
    to.send(5000);
    receive(in, rx)->loan.release_after(other.ref());
    CHECK(soon([&] { return in.kernel.tokens_out() == parked; }));
    // What the stream had got before its capture is waited for.
    fake_cuda::set_captured(captured.get(), false);
    look_at_all_streams();
    CHECK(in.kernel.tokens_out() == parked);
    captured.let_go();
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

TEST_CASE("pages released in a capture keep no others back when the stream is full after it")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_bytes const bytes{on, 1};
    gpu_test_stream const captured{on};
    gpu_test_stream const other{on};
    to.send(5000);
    auto first = std::move(receive(in, rx)->loan);
    auto const parked = in.kernel.tokens_out();
    fake_cuda::hold(captured.get());
    give_work(captured, bytes, 1000);
    fake_cuda::set_captured(captured.get(), true);
    first.release_after(captured.ref());
    fake_cuda::set_captured(captured.get(), false);
    look_at_all_streams();
    to.send(5000);
    receive(in, rx)->loan.release_after(other.ref());
    CHECK(soon([&] { return in.kernel.tokens_out() == parked; }));
    fake_cuda::let_go(captured.get());
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

TEST_CASE("pages released in a capture go back with those released after it, on a stream that always has work")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_bytes const bytes{on, 1};
    gpu_test_stream busy{on};
    gpu_test_stream const later{on};
    to.send(5000);
    auto first = std::move(receive(in, rx)->loan);
    to.send(5000);
    auto second = std::move(receive(in, rx)->loan);
    auto const parked = in.kernel.tokens_out();
    busy.hold();
    fake_cuda::set_captured(busy.get(), true);
    first.release_after(busy.ref());
    look_at_all_streams();
    fake_cuda::set_captured(busy.get(), false);
    second.release_after(busy.ref());
    // What comes behind does not end.
    fake_cuda::hold(later.get());
    give_work(later, bytes);
    auto const of = [&](gpu_test_stream const& stream) {
        return detail::gpu_stream{.ordinal = 0, .stream = stream.ref(), .context = on.context()};
    };
    REQUIRE_FALSE(order(of(busy), of(later)));
    look_at_all_streams();
    CHECK(in.kernel.tokens_out() == parked);
    busy.let_go();
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
    fake_cuda::let_go(later.get());
}

TEST_CASE("a loan is acquired on a stream that is being captured: its bytes are there, and the capture goes on")
{
    struct copying : clean_driver, world {
        copying() : world{transport::copy, {}, memory_on_gpu()} {}
    } in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream const captured{gpu_or_skip()};
    fake_cuda::set_delay_per_byte(1us);
    to.send(10000);
    auto loan = std::move(receive(in, rx)->loan);
    auto const size = loan.size();
    fake_cuda::set_captured(captured.get(), true);
    loan.acquire(captured.ref());
    CHECK(capture_of(captured) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    std::size_t at = 0;
    for (auto const& piece : loan.fragments()) {
        CHECK(is_pattern({fake_cuda::bytes_at(piece.address, piece.size), piece.size}, at));
        at += piece.size;
    }
    CHECK(at == size);
    loan.release_after(captured.ref());
    look_at_all_streams();
    CHECK(capture_of(captured) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    fake_cuda::set_captured(captured.get(), false);
    // The stream has to be there until the loan is back.
    detail::stream_point* behind = nullptr;
    detail::spare_point spare;
    spare.provide();
    mark(behind, {.ordinal = 0, .stream = captured.ref()}, spare);
    detail::cuda::wait_for(behind);
}

TEST_CASE("a stream that was captured is not asked for where a later event of it tells as much")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    to.send(5000);
    auto first = std::move(receive(in, rx)->loan);
    to.send(5000);
    auto second = std::move(receive(in, rx)->loan);
    stream.hold();
    fake_cuda::set_captured(stream.get(), true);
    first.release_after(stream.ref());
    fake_cuda::set_captured(stream.get(), false);
    second.release_after(stream.ref());
    look_at_all_streams();
    // Now it could be captured again, between the question whether it is and the other one, which would end that.
    auto const before = fake_cuda::calls("cuStreamQuery");
    look_at_all_streams();
    CHECK(fake_cuda::calls("cuStreamQuery") == before);
    CHECK(in.kernel.tokens_out() > 0);
    stream.let_go();
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

TEST_CASE("a gather that got no event leaves nothing that its stream is needed for")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    gpu_bytes const source{on, 100};
    gpu_bytes const destination{on, 100};
    std::array const fragments{fragment{source.address(), 100, memory_kind::device}};
    {
        gpu_test_stream stream{on};
        REQUIRE(gather(fragments, destination.span(), stream.ref()) == 100);
        fake_cuda::fail("cuEventRecord", CUDA_ERROR_OUT_OF_MEMORY, 0, 1000);
        REQUIRE(gather(fragments, destination.span(), stream.ref()) == 100);
        fake_cuda::fail("cuEventRecord", CUDA_SUCCESS, 0, 0);
        stream.finish();
    }
    gpu_test_stream stream{on};
    for (int i = 0; i < 100; ++i)
        REQUIRE(gather(fragments, destination.span(), stream.ref()) == 100);
    stream.finish();
}

TEST_CASE("a read that ends with an error keeps its pages until its commands from before have run")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    gpu_bytes const source{on, 100};
    gpu_bytes const destination{on, 100};
    gpu_test_stream const stream{on};
    std::array const fragments{fragment{source.address(), 40, memory_kind::device},
                               fragment{source.address() + 50, 40, memory_kind::device}};
    fake_cuda::hold(stream.get());
    fake_cuda::fail("cuMemcpyAsync", CUDA_ERROR_OUT_OF_MEMORY, 1);
    // No kernel reaches the destination, so that there is a copy for each.
    auto* const elsewhere = reinterpret_cast<CUctx_st*>(&on);
    detail::stream_point* read_until = nullptr;
    error_code code;
    CHECK(detail::gather_on_gpu(fragments, destination.span(), {.ordinal = 0, .stream = stream.ref()},
                                {.destination_of = elsewhere, .read_until = &read_until}, code) == 0);
    CHECK(code == detail::cuda::error_of(CUDA_ERROR_OUT_OF_MEMORY));
    CHECK_FALSE(has_passed(read_until));
    fake_cuda::let_go(stream.get());
    CHECK(soon([&] { return has_passed(read_until); }));
}

}  // namespace gpurx::test
