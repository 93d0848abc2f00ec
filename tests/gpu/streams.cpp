// SPDX-License-Identifier: Apache-2.0
//
// Loans in a GPU's memory: when their bytes are readable, and when their pages go back. Transport copy over loopback.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cstring>
#include <gpurx/gather.hpp>
#include <memory>
#include <random>
#include <thread>

#include "bed.hpp"
#include "loopback.hpp"
#include "memory/page_pool.hpp"

namespace gpurx::test {

namespace {

// A world whose session receives into a GPU's memory.
struct gpu_world : world {
    explicit gpu_world(std::size_t bytes = 8 << 20, rx_session_options options = {})
        : gpu_world{device_memory_of(bytes), std::move(options)}
    {}
    gpu_world(std::shared_ptr<detail::memory_state> memory, rx_session_options options)
        : world{transport::copy, std::move(options), {std::move(memory), {}}}, on{gpu_or_skip()}
    {}
    static std::shared_ptr<detail::memory_state> device_memory_of(std::size_t bytes)
    {
        return detail::make_gpu_memory(gpu_or_skip().ordinal(), bytes);
    }
    [[nodiscard]] std::size_t free_pages() const { return session.state().pages().free_count(); }

    detail::cuda::gpu& on;
};

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

constexpr std::size_t batch_size = 100'000;

std::vector<rx_buffer> receive_batch(world& in, sender& to, receiver& rx)
{
    to.send(batch_size);
    return receive_all(in, rx, batch_size);
}

void release_after(std::vector<rx_buffer>& loans, gpu_test_stream const& stream)
{
    for (auto& loan : loans)
        loan.release_after(stream.ref());
}

std::vector<fragment> fragments_of(std::vector<rx_buffer> const& loans)
{
    std::vector<fragment> pieces;
    for (auto const& loan : loans)
        pieces.insert(pieces.end(), loan.fragments().begin(), loan.fragments().end());
    return pieces;
}

}  // namespace

TEST_CASE("what is received is in the GPU's memory once a stream has acquired it")
{
    gpu_world in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{in.on};
    auto const memory = in.session.state().memory().span();
    for (std::size_t const size : {1U, 1000U, 70000U, 300000U}) {
        auto const before = to.sent();
        to.send(size);
        std::vector<std::byte> all;
        for (auto& loan : receive_all(in, rx, size)) {
            for (auto const& piece : loan.fragments()) {
                CHECK(piece.kind == memory_kind::device);
                CHECK(piece.address - memory.address() < memory.size());
            }
            auto const bytes = read_loan(in.on, stream, loan);
            all.insert(all.end(), bytes.begin(), bytes.end());
        }
        REQUIRE(all.size() == size);
        CHECK(is_pattern(all, before));
    }
    CHECK(rx.stats().host_bytes == to.sent());
}

TEST_CASE("pages go back when their stream has passed, and not before", "[hold]")
{
    gpu_world in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const all_free = in.free_pages();
    to.send(100000);
    auto loans = receive_all(in, rx, 100000);
    auto const lent = in.free_pages();
    REQUIRE(lent < all_free);
    gpu_test_stream slow{in.on};
    gpu_test_stream fast{in.on};
    slow.hold();
    for (auto& loan : loans) {
        loan.release_after(slow.ref());
        CHECK(loan.empty());
    }
    look_at_all_streams();
    CHECK(in.free_pages() == lent);

    SECTION("a stream that stands still does not hold up another, whichever came first")
    {
        gpu_test_stream slower{in.on};
        fast.hold();
        slower.hold();
        to.send(200000);
        auto others = receive_all(in, rx, 200000);
        to.send(1);
        auto last = std::move(receive_bytes(in, rx)->loan);
        auto const more_lent = in.free_pages();
        REQUIRE(more_lent < lent);
        for (auto& loan : others)
            loan.release_after(fast.ref());
        last.release_after(slower.ref());
        look_at_all_streams();
        CHECK(in.free_pages() == more_lent);
        fast.let_go();
        CHECK(soon([&] { return in.free_pages() > more_lent; }));
        slower.let_go();
    }
    SECTION("nor one that it was released after as well")
    {
        to.send(1);
        auto both = std::move(receive_bytes(in, rx)->loan);
        both.release_after(fast.ref());
    }
    slow.let_go();
    // The flow keeps the page that it is filling.
    CHECK(soon([&] { return in.free_pages() + 1 >= all_free; }));
}

TEST_CASE("a read goes on when a stream passes, with every page lent and nothing arriving", "[hold]")
{
    gpu_world in{2 << 20};
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{in.on};
    stream.hold();
    std::size_t received = 0;
    std::vector<rx_buffer> loans;
    auto const has_to_wait = [&] { return in.free_pages() == 0 || received >= in.session.state().loan_limit(); };
    std::thread writer{[&] { to.send(4 << 20); }};
    // Up to the limit of a flow's loans, then until the pages are gone.
    completion_ptr pending;
    for (;;) {
        pending = make_completion();
        rx.async_receive(noting{pending});
        in.run_until([&] { return pending->done() || (has_to_wait() && rx.stats().loan_waits > 0); });
        if (!pending->done())
            break;
        received += pending->bytes;
        loans.push_back(std::move(pending->loan));
    }
    CHECK(has_to_wait());
    for (auto& loan : loans)
        loan.release_after(stream.ref());
    look_at_all_streams();
    in.settle();
    CHECK_FALSE(pending->done());
    stream.let_go();
    in.run_until([&] { return pending->done(); });
    CHECK_FALSE(pending->code);
    received += pending->bytes;
    pending->loan.release();
    while (received < (4 << 20))
        received += receive_bytes(in, rx)->bytes;
    writer.join();
}

TEST_CASE("loans are released after a stream from any thread, and outlive everything", "[hold]")
{
    gpu_world in;
    sender to{in.wires};
    std::optional rx{in.flow(to)};
    gpu_test_stream stream{in.on};
    stream.hold();
    to.send(400000);
    auto loans = receive_all(in, *rx, 400000);
    {
        std::vector<std::jthread> threads;
        for (auto& loan : loans)
            threads.emplace_back([&] { loan.release_after(stream.ref()); });
    }
    rx.reset();
    in.session.drop();
    CHECK_FALSE(in.session.ended());
    stream.let_go();
    CHECK(soon([&] { return in.session.ended(); }));
}

namespace {

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

namespace {

enum class flow_end { peer_closes, peer_resets, receiver_goes, session_goes };

void end_flow(flow_end how, world& in, sender& to, std::optional<receiver>& rx)
{
    auto const pending = make_completion();
    rx->async_receive(noting{pending});
    in.settle();
    CHECK_FALSE(pending->done());
    if (how == flow_end::peer_closes)
        to.finish();
    else if (how == flow_end::peer_resets)
        to.reset();
    else
        rx.reset();
    if (how == flow_end::session_goes)
        in.session.drop();
    in.run_until([&] { return pending->done(); });
    CHECK(pending->code);
    rx.reset();
}

// Until all of the session's memory, and all chunks on the way to it, have been written to if they may be.
void receive_much(gpu_world& in, sender& to, receiver& rx, gpu_test_stream& stream, gpu_bytes const& tensor)
{
    auto const size = tensor.span().size();
    for (int round = 0; round < 20; ++round) {
        auto const from = to.sent();
        to.send(size);
        std::vector<std::byte> seen;
        for (auto& loan : receive_all(in, rx, size)) {
            auto const bytes = read_loan(in.on, stream, loan);
            seen.insert(seen.end(), bytes.begin(), bytes.end());
        }
        REQUIRE(is_pattern(seen, from));
        to.send(size);
        REQUIRE(read(in, rx, tensor.span(), stream.ref())->bytes == size);
        stream.finish();
        REQUIRE(is_pattern(tensor.read(), from + size));
    }
}

void check_all_is_back(gpu_world& in, std::size_t all_free)
{
    CHECK(soon([&] { return in.free_pages() == all_free; }));
    // Places of flows come back behind their last page.
    CHECK(soon([&] { return in.session.state().free_places() == 2; }));
    sender to_first{in.wires};
    sender to_second{in.wires};
    auto const first = in.flow(to_first);
    auto const second = in.flow(to_second);
}

}  // namespace

TEST_CASE("a flow that ends with pages behind a held stream keeps them until it has passed, and then leaves nothing",
          "[hold]")
{
    auto const how =
        GENERATE(flow_end::peer_closes, flow_end::peer_resets, flow_end::receiver_goes, flow_end::session_goes);
    auto const lends = GENERATE(true, false);  // a loan keeps its flow; else there is a read only
    auto memory = gpu_world::device_memory_of(2 << 20);
    std::weak_ptr const left{memory};
    gpu_world in{std::move(memory), {.max_flows = 2}};
    auto const all_free = in.free_pages();
    sender to{in.wires};
    sender to_other{in.wires};
    std::optional rx{in.flow(to)};
    std::optional other{in.flow(to_other)};
    constexpr std::size_t size = 200'000;
    gpu_test_stream held{in.on};
    gpu_test_stream busy{in.on};
    gpu_bytes lent{in.on, size};
    gpu_bytes tensor{in.on, size};
    gpu_bytes of_other{in.on, size};
    to.send(size);
    auto loans = receive_all(in, *rx, size);
    to.send(size);

    // The stream is to read pages of the session, and chunks on the way to the GPU.
    held.hold();
    if (lends) {
        for (auto& loan : loans)
            loan.acquire(held.ref());
        REQUIRE(gather(fragments_of(loans), lent.span(), held.ref()) == size);
        release_after(loans, held);
    }
    loans.clear();
    REQUIRE(read(in, *rx, tensor.span(), held.ref())->bytes == size);
    end_flow(how, in, to, rx);
    receive_much(in, to_other, *other, busy, of_other);
    if (lends) {
        other.reset();
        CHECK_FALSE(in.session.ended());
    }
    CHECK(lent.read() == std::vector<std::byte>(size, std::byte{0xee}));
    CHECK(tensor.read() == std::vector<std::byte>(size, std::byte{0xee}));

    held.let_go();
    held.finish();
    other.reset();  // the last of a session may free its memory, and to do that waits for all streams of the GPU
    CHECK(is_pattern(tensor.read(), size));
    if (lends)
        CHECK(is_pattern(lent.read(), 0));
    if (how == flow_end::session_goes)
        CHECK(soon([&] { return in.session.ended() && left.expired(); }));
    else
        check_all_is_back(in, all_free);
}

TEST_CASE("bytes on loan never change while the GPU goes on reading them and others arrive", "[hold]")
{
    gpu_world in{2 << 20, {.loan_limit = 1 << 20}};
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream held{in.on};
    gpu_test_stream reader{in.on};
    gpu_test_stream busy{in.on};
    constexpr std::size_t size = 200'000;
    constexpr std::size_t rounds = 40;
    to.send(size);
    auto loans = receive_all(in, rx, size);
    auto const pieces = fragments_of(loans);
    gpu_bytes scratch{in.on, size};
    gpu_bytes sums{in.on, rounds * sizeof(std::uint32_t)};
    held.hold();
    for (auto& loan : loans)
        loan.release_after(held.ref());
    for (std::size_t round = 0; round < rounds; ++round) {
        auto const sum = sums.span().subspan(round * sizeof(std::uint32_t), sizeof(std::uint32_t));
        REQUIRE(gather_crc32c(pieces, scratch.span(), sum, reader.ref()) == size);
        auto const from = to.sent();
        to.send(150'000);
        std::vector<std::byte> now;
        for (auto& loan : receive_all(in, rx, 150'000)) {
            auto const bytes = read_loan(in.on, busy, loan);
            now.insert(now.end(), bytes.begin(), bytes.end());
            if (round % 2 == 0)
                loan.release_after(busy.ref());
        }
        REQUIRE(is_pattern(now, from));
    }
    reader.finish();
    CHECK(is_pattern(scratch.read(), 0));
    auto const seen = sums.read();
    for (std::size_t round = 1; round < rounds; ++round)
        REQUIRE(std::memcmp(seen.data(), seen.data() + round * sizeof(std::uint32_t), sizeof(std::uint32_t)) == 0);
    held.let_go();
}

TEST_CASE("a read into the GPU's memory is contiguous and in the order of its stream", "[hold]")
{
    auto const host_session = GENERATE(false, true);
    auto& on = gpu_or_skip();
    std::optional<gpu_world> with_gpu;
    std::optional<world> without;
    auto& in = host_session ? without.emplace(transport::copy) : with_gpu.emplace();
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{on};
    std::size_t const size = GENERATE(1, 5000, 3 << 20);
    gpu_bytes tensor{on, size};
    std::jthread writer{[&] { to.send(size); }};
    if (size == 5000)
        stream.hold();
    auto got = make_completion();
    async_read(rx, tensor.span(), stream.ref(), noting{got});
    in.run_until([&] { return got->done(); });
    CHECK_FALSE(got->code);
    CHECK(got->bytes == size);
    if (size == 5000) {
        CHECK(tensor.read() == std::vector<std::byte>(size, std::byte{0xee}));
        stream.let_go();
    }
    stream.finish();
    CHECK(is_pattern(tensor.read(), 0));
}

TEST_CASE("a slow stream holds up its own reads, and loses nothing", "[hold]")
{
    gpu_world in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{in.on};
    constexpr std::size_t size = 6 << 20;
    gpu_bytes tensor{in.on, size};
    std::jthread writer{[&] { to.send(size); }};
    stream.hold();
    auto got = make_completion();
    async_read(rx, tensor.span(), stream.ref(), noting{got});
    // Until all that it may have waits for the stream.
    in.run_until([&] { return got->done() || rx.stats().loan_waits > 0; });
    look_at_all_streams();
    in.settle();
    CHECK_FALSE(got->done());
    stream.let_go();
    in.run_until([&] { return got->done(); });
    CHECK(got->bytes == size);
    stream.finish();
    CHECK(is_pattern(tensor.read(), 0));
}

TEST_CASE("the host reads what lies on the GPU, and the GPU what the host left")
{
    gpu_world in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{in.on};
    to.send(300000);
    std::vector<std::byte> header(1000);
    auto got = make_completion();
    async_read(rx, host_span{header.data(), header.size()}, noting{got});
    in.run_until([&] { return got->done(); });
    CHECK(is_pattern(header, 0));
    auto loan = std::move(receive_bytes(in, rx)->loan);
    auto const lent = loan.size();
    CHECK(is_pattern(read_loan(in.on, stream, loan), 1000));
    loan.release();
    gpu_bytes rest{in.on, 300000 - 1000 - lent};
    got = make_completion();
    async_read(rx, rest.span(), stream.ref(), noting{got});
    in.run_until([&] { return got->done(); });
    stream.finish();
    CHECK(is_pattern(rest.read(), 1000 + lent));
}

TEST_CASE("flows that come and go leave nothing behind")
{
    gpu_world in{8 << 20, {.max_flows = 20}};  // a loan keeps its flow, and its flow a place
    auto const all_free = in.free_pages();
    gpu_test_stream stream{in.on};
    std::mt19937 random{8};
    for (int round = 0; round < 20; ++round) {
        sender to{in.wires};
        auto rx = in.flow(to);
        auto const size = 1 + random() % 200000;
        to.send(size);
        auto loans = receive_all(in, rx, size);
        for (auto& loan : loans)
            if (random() % 2 == 0)
                loan.release_after(stream.ref());
        if (random() % 2 == 0)
            rx.close();
    }
    CHECK(soon([&] { return in.free_pages() == all_free; }));
}

}  // namespace gpurx::test
