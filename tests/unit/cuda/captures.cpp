// SPDX-License-Identifier: Apache-2.0
//
// Streams that a program captures into a graph: what the library does beside that leaves the graph as it is.
#include <catch2/generators/catch_generators.hpp>

#include "cuda/stream_point.hpp"
#include "fake_world.hpp"

namespace gpurx::test {

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
    devmem_on_gpu in;
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

}  // namespace gpurx::test
