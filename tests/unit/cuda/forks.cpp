// SPDX-License-Identifier: Apache-2.0
//
// Streams beside one stream: the order of their work, and what they are used for again.
#include <gpurx/cuda_stream.hpp>
#include <optional>
#include <set>

#include "fake_world.hpp"

namespace gpurx::test {

namespace {

constexpr std::size_t flows = 4;

// A stream of the library's, and bytes for its work.
struct forked {
    explicit forked(std::size_t count = flows) { fork.emplace(stream, std::span{&all, 1}, count); }
    forked(forked const&) = delete;
    forked& operator=(forked const&) = delete;
    ~forked() { fake_cuda::let_go_all(); }

    // The streams of all flows.
    [[nodiscard]] std::set<CUstream> streams() const
    {
        std::set<CUstream> found;
        for (std::size_t i = 0; i < flows; ++i)
            found.insert((*fork)[i].get());
        return found;
    }
    // Writes a byte of its own: streams of a fork run beside each other.
    void write(cuda_stream_ref to)
    {
        detail::cuda::context_scope const scope{on};
        REQUIRE(on.calls().cuMemsetD8Async(bytes.address() + written++, 1, 1, to.get()) == CUDA_SUCCESS);
    }
    [[nodiscard]] CUresult state() const
    {
        detail::cuda::context_scope const scope{on};
        return on.calls().cuStreamQuery(stream.get());
    }

    detail::cuda::gpu& on = gpu_or_skip();
    gpu_bytes bytes{on, 4096};
    memory_span all = bytes.span();
    cuda_stream stream = cuda_stream::on(0);
    std::optional<stream_fork> fork;
    std::size_t written = 0;
};

}  // namespace

TEST_CASE("streams of a fork begin behind the forked stream, and it waits for all of them after the join")
{
    clean_driver const clean;
    forked in;
    auto const streams = in.streams();
    CHECK(streams.size() == flows);
    CHECK_FALSE(streams.contains(in.stream.get()));
    in.fork.reset();
    REQUIRE(soon([&] { return in.state() == CUDA_SUCCESS; }));
    fake_cuda::hold(in.stream.get());
    in.write(in.stream);
    in.fork.emplace(in.stream, std::span{&in.all, 1}, flows);
    CHECK(in.streams() == streams);
    for (auto* const each : streams) {
        in.write(each);
        CHECK(fake_cuda::queued(each) > 0);
    }
    for (auto* const each : streams)
        fake_cuda::hold(each);
    in.fork->join();
    CHECK((*in.fork)[0] == in.stream);
    fake_cuda::let_go(in.stream.get());
    for (auto* const each : streams) {
        CHECK(in.state() == CUDA_ERROR_NOT_READY);
        fake_cuda::let_go(each);
    }
    CHECK(soon([&] { return in.state() == CUDA_SUCCESS; }));
}

TEST_CASE("a fork uses no stream whose work of an earlier fork has not passed, and makes none that it need not")
{
    clean_driver const clean;
    forked first;
    auto const of_first = first.streams();
    for (auto* const each : of_first) {
        fake_cuda::hold(each);
        first.write(each);
    }
    first.fork.reset();
    forked second;
    auto const of_second = second.streams();
    CHECK(of_second.size() == flows);
    for (auto* const each : of_second)
        CHECK_FALSE(of_first.contains(each));
    second.fork.reset();
    fake_cuda::let_go_all();
    for (auto* const each : of_first)
        fake_cuda::let_go(each);
    auto const made = fake_cuda::calls("cuStreamCreate");
    REQUIRE(soon([&] { return first.state() == CUDA_SUCCESS; }));
    for (int i = 0; i < 20; ++i) {
        second.fork.emplace(second.stream, std::span{&second.all, 1}, flows);
        CHECK(second.streams().size() == flows);
        second.fork.reset();
        REQUIRE(soon([&] { return second.state() == CUDA_SUCCESS; }));
    }
    CHECK(fake_cuda::calls("cuStreamCreate") == made);
}

TEST_CASE("forks at the same time share 32 streams of a GPU")
{
    clean_driver const clean;
    std::vector<std::unique_ptr<forked>> all;
    std::set<CUstream> streams;
    for (int i = 0; i < 12; ++i) {
        all.push_back(std::make_unique<forked>());
        auto const more = all.back()->streams();
        streams.insert(more.begin(), more.end());
        streams.erase(all.back()->stream.get());
    }
    CHECK(streams.size() == 32);
    CHECK(all.back()->streams() == std::set<CUstream>{all.back()->stream.get()});
}

TEST_CASE("there is no fork where an operation on the stream would fail, wait, or go elsewhere")
{
    clean_driver const clean;
    auto& on = gpu_or_skip();
    gpu_bytes const bytes{on, 4096};
    gpu_bytes const elsewhere{gpu_or_skip(1), 4096};
    std::array const one{bytes.span()};
    std::array const two{bytes.span(), elsewhere.span()};
    auto const stream = cuda_stream::on(0);
    // It would decide about a default stream.
    detail::cuda::context_scope const current{on};
    auto const has_streams = [](cuda_stream_ref of, std::span<memory_span const> memory, std::size_t count) {
        stream_fork const fork{of, memory, count};
        return fork[0] != of;
    };
    CHECK(has_streams(stream, one, 2));
    CHECK(has_streams({}, one, 2));
    CHECK_FALSE(has_streams(stream, one, 1));
    CHECK_FALSE(has_streams(stream, {}, 2));
    CHECK_FALSE(has_streams({}, two, 2));
    CHECK_FALSE(has_streams(cuda_stream_ref{CU_STREAM_PER_THREAD}, one, 2));
    fake_cuda::set_captured(stream.get(), true);
    CHECK_FALSE(has_streams(stream, one, 2));
    fake_cuda::set_captured(stream.get(), false);
    for (auto const* const call : {"cuEventRecord", "cuStreamWaitEvent"}) {
        fake_cuda::fail(call, CUDA_ERROR_OUT_OF_MEMORY, 0, 9);
        CHECK_FALSE(has_streams(stream, one, 2));
        fake_cuda::fail(call, CUDA_SUCCESS, 0, 0);
    }
    CHECK(has_streams(stream, one, 2));
}

TEST_CASE("a join that the stream cannot wait for waits itself")
{
    clean_driver const clean;
    forked in;
    auto const streams = in.streams();
    auto const is_idle = [&] { return fake_cuda::queued(*streams.begin()) == 0; };
    fake_cuda::set_delay_per_byte(20ms);
    SECTION("in a capture")
    {
        in.write(*streams.begin());
        fake_cuda::set_captured(in.stream.get(), true);
        in.fork.reset();
        CHECK(is_idle());
        fake_cuda::set_captured(in.stream.get(), false);
    }
    SECTION("after the end of the stream")
    {
        in.write(*streams.begin());
        in.stream = {};
        in.fork.reset();
        CHECK(is_idle());
    }
    SECTION("where the driver refuses")
    {
        in.write(*streams.begin());
        fake_cuda::fail("cuStreamWaitEvent", CUDA_ERROR_UNKNOWN, 0, flows);
        in.fork.reset();
        CHECK(is_idle());
    }
}

TEST_CASE("forks of a stream that stands still do not fill its queue")
{
    clean_driver const clean;
    forked in;
    in.fork.reset();
    fake_cuda::hold(in.stream.get());
    in.write(in.stream);
    for (int i = 0; i < 1000; ++i)
        in.fork.emplace(in.stream, std::span{&in.all, 1}, flows);
    in.fork.reset();
    CHECK(fake_cuda::queued(in.stream.get()) < 100);
    fake_cuda::let_go(in.stream.get());
    CHECK(soon([&] { return in.state() == CUDA_SUCCESS; }));
}

}  // namespace gpurx::test
