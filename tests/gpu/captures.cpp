// SPDX-License-Identifier: Apache-2.0
//
// Streams that a program captures into a graph while the library goes on beside them.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <gpurx/gather.hpp>
#include <utility>

#include "loopback.hpp"

namespace gpurx::test {

namespace {

// What this thread has a stream do later: a capture into a graph, in the mode that minds calls of other threads too.
class captured_graph {
  public:
    explicit captured_graph(detail::cuda::gpu& on) : on_{on} {}
    captured_graph(captured_graph const&) = delete;
    captured_graph& operator=(captured_graph const&) = delete;
    ~captured_graph()
    {
        static_cast<void>(end());
        detail::cuda::context_scope const scope{on_};
        if (launchable_ != nullptr)
            static_cast<void>(GPURX_DRIVER(cuGraphExecDestroy)(launchable_));
        if (graph_ != nullptr)
            static_cast<void>(GPURX_DRIVER(cuGraphDestroy)(graph_));
    }

    [[nodiscard]] CUresult begin(gpu_test_stream const& stream)
    {
        detail::cuda::context_scope const scope{on_};
        auto const status = GPURX_DRIVER(cuStreamBeginCapture)(stream.get(), CU_STREAM_CAPTURE_MODE_GLOBAL);
        if (status == CUDA_SUCCESS)
            stream_ = stream.get();
        return status;
    }
    [[nodiscard]] bool is_valid() const
    {
        detail::cuda::context_scope const scope{on_};
        auto status = CU_STREAM_CAPTURE_STATUS_NONE;
        return on_.calls().cuStreamIsCapturing(stream_, &status) == CUDA_SUCCESS &&
               status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    }
    [[nodiscard]] CUresult end()
    {
        detail::cuda::context_scope const scope{on_};
        auto* const stream = std::exchange(stream_, nullptr);
        return stream == nullptr ? CUDA_SUCCESS : GPURX_DRIVER(cuStreamEndCapture)(stream, &graph_);
    }
    [[nodiscard]] CUresult make_launchable()
    {
        detail::cuda::context_scope const scope{on_};
        return GPURX_DRIVER(cuGraphInstantiate)(&launchable_, graph_, 0);
    }
    [[nodiscard]] CUresult launch(gpu_test_stream const& stream) const
    {
        detail::cuda::context_scope const scope{on_};
        return GPURX_DRIVER(cuGraphLaunch)(launchable_, stream.get());
    }

  private:
    detail::cuda::gpu& on_;
    CUstream stream_ = nullptr;
    CUgraph graph_ = nullptr;
    CUgraphExec launchable_ = nullptr;
};

// What a stream is captured beside.
struct capture_bed : gpu_world {
    capture_bed() : gpu_world{2 << 20, {.max_flows = 32, .loan_limit = 1 << 20}}  // so many make its pages small
    {
        source.write(pattern(1, batch_size));
        REQUIRE(batch_pages >= 20);
    }
    // In batches, which have a page or two more than is counted here, as has the flow: that it fills next.
    [[nodiscard]] std::size_t parked() const { return (all_free - free_pages()) / batch_pages; }
    [[nodiscard]] bool stays_parked(std::size_t batches) const
    {
        look_at_all_streams();
        return parked() == batches;
    }
    // Into the graph: `destination` becomes what `source` is then, and its first byte 0xcc.
    [[nodiscard]] CUresult give_first_node() const
    {
        detail::cuda::context_scope const scope{on};
        return on.calls().cuMemcpyAsync(destination.address(), source.address(), batch_size, stream.get());
    }
    [[nodiscard]] CUresult give_second_node() const
    {
        detail::cuda::context_scope const scope{on};
        return on.calls().cuMemsetD8Async(destination.address(), 0xcc, 1, stream.get());
    }

    std::size_t all_free = free_pages();
    std::size_t batch_pages = batch_size / session.state().pages().page_size();
    sender to{wires};
    receiver rx = flow(to);
    gpu_test_stream stream{on};  // is captured
    gpu_test_stream other{on};
    gpu_test_stream passing{on};
    gpu_bytes source{on, batch_size};
    gpu_bytes destination{on, batch_size};
    gpu_bytes tensor{on, batch_size};
};

// What the library does with a stream that is being captured, and beside that with another.
void go_on_in_capture(capture_bed& in)
{
    auto loans = receive_batch(in, in.to, in.rx);
    for (auto& loan : loans)
        loan.acquire(in.stream.ref());
    error_code code;
    CHECK(gather(fragments_of(loans), in.tensor.span(), in.stream.ref(), code) == 0);
    CHECK(code == errc::unusable_stream);
    CHECK(read(in, in.rx, in.tensor.span(), in.stream.ref())->code == errc::unusable_stream);
    release_after(loans, in.stream);
    auto const parked = in.parked();
    auto at_once = receive_batch(in, in.to, in.rx);
    for (auto& loan : at_once)
        loan.acquire(in.passing.ref());
    REQUIRE(gather(fragments_of(at_once), in.tensor.span(), in.passing.ref()) == batch_size);
    release_after(at_once, in.passing);
    CHECK(soon([&] { return in.parked() == parked; }));
}

void check_graph(capture_bed& in, captured_graph& graph)
{
    CHECK(in.destination.read() == std::vector<std::byte>(batch_size, std::byte{0xee}));
    REQUIRE(graph.make_launchable() == CUDA_SUCCESS);
    for (std::size_t const from : {1, 2}) {
        in.source.write(pattern(from, batch_size));
        REQUIRE(graph.launch(in.stream) == CUDA_SUCCESS);
        in.stream.finish();
        auto wanted = pattern(from, batch_size);
        wanted[0] = std::byte{0xcc};
        CHECK(in.destination.read() == wanted);
    }
}

}  // namespace

TEST_CASE("a stream is captured into a graph while pages wait for it and for another one", "[hold]")
{
    capture_bed in;
    // Else what it was given before the capture is done after it only, and the library has no event behind that.
    auto const passes_in_capture = GENERATE(true, false);
    auto before = receive_batch(in, in.to, in.rx);
    auto on_other = receive_batch(in, in.to, in.rx);
    in.stream.hold();
    in.other.hold();
    release_after(before, passes_in_capture ? in.stream : in.other);
    release_after(on_other, in.other);

    captured_graph graph{in.on};
    REQUIRE(graph.begin(in.stream) == CUDA_SUCCESS);
    REQUIRE(in.give_first_node() == CUDA_SUCCESS);
    go_on_in_capture(in);
    CHECK(in.stays_parked(3));
    CHECK(graph.is_valid());
    in.other.let_go();
    if (passes_in_capture) {
        CHECK(soon([&] { return in.parked() == 2; }));
        in.stream.let_go();
    }
    CHECK(soon([&] { return in.parked() == 1; }));
    CHECK(in.stays_parked(1));
    CHECK(graph.is_valid());
    REQUIRE(in.give_second_node() == CUDA_SUCCESS);
    REQUIRE(graph.end() == CUDA_SUCCESS);
    if (!passes_in_capture) {
        CHECK(in.stays_parked(1));
        in.stream.let_go();
    }
    CHECK(soon([&] { return in.parked() == 0; }));

    in.stream.finish();
    in.passing.finish();
    CHECK(is_pattern(in.tensor.read(), 3 * batch_size));
    check_graph(in, graph);
}

}  // namespace gpurx::test
