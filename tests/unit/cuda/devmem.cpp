// SPDX-License-Identifier: Apache-2.0
//
// Transport devmem into a GPU's memory, with the fake kernel and the fake driver: the CPU cannot touch a byte of it.
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/acceptor.hpp>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "fake_world.hpp"

namespace gpurx::test {

namespace {

using way = fake_kernel::way;

}  // namespace

TEST_CASE("a NIC into a GPU: fragments are where the NIC wrote them")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    gpu_test_stream stream{gpu_or_skip()};
    to.send(50000);
    auto const got = receive(in, rx);
    REQUIRE(got->bytes == 50000);
    for (auto const& piece : got->loan.fragments())
        CHECK(piece.kind == memory_kind::device);
    CHECK(is_pattern(read_loan(gpu_or_skip(), stream, got->loan), 0));
}

TEST_CASE("a NIC into a GPU: reads gather, on the GPU and to the host, and pages wait for the stream")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    gpu_bytes tensor{on, 20001};
    to.send(60000);
    std::vector<std::byte> header(333);
    REQUIRE(read(in, rx, host_span{header.data(), header.size()})->bytes == 333);
    CHECK(is_pattern(header, 0));
    stream.hold();
    auto const before = fake_cuda::calls("cuLaunchKernel");
    REQUIRE(read(in, rx, tensor.span(), stream.ref())->bytes == 20001);
    CHECK(fake_cuda::calls("cuLaunchKernel") == before + 1);
    // The rest of the batch, lent and given back, takes its pages along; they wait for the gather all the same.
    auto loan = std::move(receive(in, rx)->loan);
    CHECK(loan.size() == 60000 - 333 - 20001);
    auto const lent = in.kernel.tokens_out();
    auto const before_release = (*in.session).pool_stats();
    REQUIRE(before_release);
    CHECK(before_release->on_loan == lent);
    CHECK(before_release->parked == 0);
    loan.release();
    auto const waiting = (*in.session).pool_stats();
    REQUIRE(waiting);
    CHECK(waiting->parked == lent);
    CHECK(waiting->flows.at(0).parked == lent);
    CHECK(waiting->on_loan + waiting->in_reads == 0);
    look_at_all_streams();
    CHECK(in.kernel.tokens_out() == lent);
    stream.let_go();
    stream.finish();
    CHECK(is_pattern(tensor.read(), 333));
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
    CHECK(soon([&] { return (*in.session).pool_stats()->parked == 0; }));
}

TEST_CASE("a NIC into a GPU: pages of loans of several batches and of parts are told where they are")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    gpu_bytes tensor{on, 1000};
    // The rest of a batch that was read from, and a batch behind it.
    to.send(8192);
    REQUIRE(read(in, rx, tensor.span(), stream.ref())->bytes == 1000);
    auto const got = make_completion();
    rx.async_receive_exactly(15384 - 1000, noting{got});
    in.settle();
    to.send(15384 - 8192);
    in.run_until([&] { return got->done(); });
    REQUIRE_FALSE(got->code);
    auto const lent = in.kernel.tokens_out();
    REQUIRE((*in.session).pool_stats()->on_loan == lent);
    stream.hold();
    SECTION("the whole loan waits for a stream")
    {
        got->loan.release_after(stream.ref());
        CHECK((*in.session).pool_stats()->parked == lent);
        CHECK((*in.session).pool_stats()->on_loan == 0);
    }
    SECTION("a part waits, and another is on loan")
    {
        auto part = got->loan.split(100);
        part.release_after(stream.ref());
        CHECK((*in.session).pool_stats()->on_loan == lent);
        got->loan.release_after(stream.ref());
        stream.let_go();
        stream.finish();
    }
    SECTION("what was split waits, and its part is on loan afterwards")
    {
        auto part = got->loan.split(100);
        got->loan.release_after(stream.ref());
        CHECK((*in.session).pool_stats()->on_loan == lent);
        stream.let_go();
        stream.finish();
        look_at_all_streams();
        CHECK((*in.session).pool_stats()->on_loan == lent);
    }
    stream.let_go();
    stream.finish();
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

TEST_CASE("a NIC into a GPU: a batch that was read stays on loan while a part of it is")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    gpu_bytes tensor{on, 7000};
    to.send(8000);
    std::vector<std::byte> header(16);
    REQUIRE(read(in, rx, host_span{header.data(), header.size()})->bytes == 16);
    auto const got = make_completion();
    rx.async_receive(984, noting{got});
    in.run_until([&] { return got->done(); });
    REQUIRE(got->bytes == 984);
    stream.hold();
    REQUIRE(read(in, rx, tensor.span(), stream.ref())->bytes == 7000);
    CHECK((*in.session).pool_stats()->on_loan == 2);
    stream.let_go();
    stream.finish();
    look_at_all_streams();
    CHECK((*in.session).pool_stats()->on_loan == 2);
    CHECK((*in.session).pool_stats()->parked == 0);
    got->loan.release();
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

TEST_CASE("a NIC into a GPU: two streams read one batch, and its pages wait for both")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_test_stream first{on};
    gpu_test_stream second{on};
    gpu_bytes one{on, 10000};
    gpu_bytes two{on, 10000};
    to.send(20000);
    first.hold();
    REQUIRE(read(in, rx, one.span(), first.ref())->bytes == 10000);
    REQUIRE(read(in, rx, two.span(), second.ref())->bytes == 10000);
    second.finish();
    CHECK(is_pattern(two.read(), 10000));
    look_at_all_streams();
    CHECK(in.kernel.tokens_out() == 5);
    first.let_go();
    first.finish();
    CHECK(is_pattern(one.read(), 0));
    CHECK(soon([&] { return in.kernel.tokens_out() == 0; }));
}

TEST_CASE("a NIC into a GPU: a read whose stream stands still leaves the memory to others")
{
    nic_into_gpu in;
    sender to{in.wires};
    sender other{in.wires};
    auto rx = in.flow(to);
    auto second = in.flow(other);
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    gpu_bytes tensor{on, 6 << 20};
    stream.hold();
    auto const pending = make_completion();
    async_read(rx, tensor.span(), stream.ref(), noting{pending});
    std::thread feeder{[&] { to.send(6 << 20); }};
    in.run_until([&] { return rx.stats().loan_waits > 0 || rx.stats().device_bytes > (5 << 20); });
    CHECK_FALSE(pending->done());
    auto const share = in.session.state().read_share();
    CHECK(in.kernel.tokens_out() * fake_kernel::page_size <= share);
    CHECK(share == 512 << 10);
    CHECK_THAT((*in.session).explain(), Catch::Matchers::ContainsSubstring("waits for GPU streams"));
    // Another flow goes on, and what the stream waits for is perhaps its doing.
    other.send(100000);
    auto loan = std::move(receive(in, second)->loan);
    CHECK(loan.size() == 100000);
    loan.release();
    // So do loans of the flow itself, once it has no read.
    stream.let_go();
    in.run_until([&] { return pending->done(); });
    feeder.join();
    CHECK_FALSE(pending->code);
    stream.finish();
    CHECK(is_pattern(tensor.read(), 0));
}

TEST_CASE("a NIC into a GPU: host memory is pinned only for a flow whose bytes come to the host")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const pinned = fake_cuda::calls("cuMemHostAlloc");
    to.send(30000);
    CHECK(receive(in, rx)->bytes == 30000);
    CHECK(fake_cuda::calls("cuMemHostAlloc") == pinned);
    for (int i = 0; i < 20; ++i) {
        in.kernel.deliver({{way::linear, 100, 0}});
        to.send(100);
        auto const got = receive(in, rx);
        CHECK(got->bytes == 100);
        CHECK(detail::place_of(got->loan.fragments()[0].address).ordinal == 0);
    }
    // None if a flow of an earlier run has left some.
    CHECK(fake_cuda::calls("cuMemHostAlloc") <= pinned + 1);
    CHECK(rx.stats().host_memory == 2 << 20);
}

TEST_CASE("a NIC into a GPU: a call writes no host memory that a gather of an earlier call's bytes reads")
{
    constexpr std::uintptr_t block = 16;
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    std::vector<rx_buffer> loans;
    std::uintptr_t last = 0;
    for (auto const kind : {way::linear, way::linear, way::plain, way::linear}) {
        in.kernel.deliver({{kind, 99, 0}});
        to.send(99);
        loans.push_back(std::move(receive(in, rx)->loan));
        auto const bytes = loans.back().fragments()[0];
        CHECK(bytes.address / block != last / block);
        last = bytes.address + bytes.size - 1;
    }
}

TEST_CASE("a NIC into a GPU: linear bytes and device bytes are gathered in one launch")
{
    nic_into_gpu in{transport::devmem};  // a ring's request ends where the memory does
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    gpu_test_stream stream{on};
    in.kernel.deliver({{way::linear, 1, 0}});
    to.send(1);
    REQUIRE(receive(in, rx)->bytes == 1);  // from now on the flow has memory that the GPU can reach
    gpu_bytes tensor{on, 30000};
    in.kernel.deliver({{way::linear, 100, 0}, {way::device, 9000, test_session::first_id}, {way::linear, 1500, 0}});
    to.send(30000);
    auto const launches = fake_cuda::calls("cuLaunchKernel");
    auto const copies = fake_cuda::calls("cuMemcpyAsync");
    REQUIRE(read(in, rx, tensor.span(), stream.ref())->bytes == 30000);
    stream.finish();
    CHECK(is_pattern(tensor.read(), 1));
    CHECK(fake_cuda::calls("cuLaunchKernel") == launches + 1);
    CHECK(fake_cuda::calls("cuMemcpyAsync") == copies);
}

TEST_CASE("a NIC into a GPU: receives and reads of all kinds in any order lose and change nothing")
{
    nic_into_gpu in;
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& on = gpu_or_skip();
    std::vector<std::unique_ptr<gpu_test_stream>> streams;
    for (int i = 0; i < 3; ++i)
        streams.push_back(std::make_unique<gpu_test_stream>(on));
    std::mt19937 random{9};
    std::vector<std::unique_ptr<gpu_bytes>> tensors;
    std::vector<std::size_t> offsets;
    std::size_t at = 0;
    std::size_t round = 0;
    while (at < (4 << 20)) {
        if (to.sent() < at + 200000)
            to.send(200000);
        auto& stream = *streams[random() % 3];
        auto const size = 1 + random() % 100000;
        if (++round % 7 == 0)
            in.kernel.deliver({{way::linear, 1 + random() % 3000, 0}, {way::plain, 1 + random() % 3000, 0}});
        switch (random() % 3) {
            case 0: {
                auto got = receive(in, rx);
                REQUIRE(is_pattern(read_loan(on, stream, got->loan), at));
                at += got->bytes;
                if (random() % 2 == 0)
                    got->loan.release_after(stream.ref());
                break;
            }
            case 1: {
                std::vector<std::byte> here(size);
                REQUIRE(read(in, rx, host_span{here.data(), size})->bytes == size);
                REQUIRE(is_pattern(here, at));
                at += size;
                break;
            }
            default:
                tensors.push_back(std::make_unique<gpu_bytes>(on, size));
                offsets.push_back(at);
                REQUIRE(read(in, rx, tensors.back()->span(), stream.ref())->bytes == size);
                at += size;
        }
    }
    for (auto& stream : streams)
        stream->finish();
    for (std::size_t i = 0; i < tensors.size(); ++i)
        REQUIRE(is_pattern(tensors[i]->read(), offsets[i]));
}

TEST_CASE("several GPUs: one in error for good ends its flows and no others, and gets no new ones")
{
    constexpr std::uint32_t second_id = test_session::first_id + 1;
    nic_into_gpu in;
    test_session second{(*in.session).transport(), in.kernel, {}, memory_on_gpu(8 << 20, 1), second_id};
    static_cast<void>(
        detail::session_state::join({in.session.state().shared_from_this(), second.state().shared_from_this()}));
    acceptor from{in.io->get_executor(), *in.session, {asio::ip::address_v4::loopback(), 0}};
    std::vector<std::unique_ptr<sender>> callers;
    auto const accept = [&](receiver& rx) {
        auto& to = *callers.emplace_back(std::make_unique<sender>(in.wires));
        to.socket().connect(from.local_endpoint());
        auto const got = make_completion();
        from.async_accept(rx, noting{got});
        in.run_until([&] { return got->done(); });
        return got->code;
    };
    std::vector<std::byte> header(100);
    auto const bring = [&](receiver& rx, sender& to, std::uint32_t dmabuf_id) {
        in.kernel.deliver({{way::device, 100, dmabuf_id}});
        to.send(100);
        return read(in, rx, host_span{header.data(), header.size()})->code;
    };
    receiver first_flow{*in.io, *in.session};
    receiver second_flow{*in.io, *in.session};
    REQUIRE_FALSE(accept(first_flow));
    REQUIRE_FALSE(accept(second_flow));
    REQUIRE_FALSE(bring(first_flow, *callers[0], test_session::first_id));
    REQUIRE_FALSE(bring(second_flow, *callers[1], second_id));
    auto& on = gpu_or_skip(1);
    std::optional<gpu_test_stream> stream{std::in_place, on};
    in.kernel.deliver({{way::device, 50, second_id}});
    callers[1]->send(50);
    auto loan = std::move(receive(in, second_flow)->loan);

    auto const broken = detail::cuda::error_of(CUDA_ERROR_ILLEGAL_ADDRESS);
    fake_cuda::break_context(1, CUDA_ERROR_ILLEGAL_ADDRESS);
    auto const seen_by_stream = GENERATE(true, false);
    if (seen_by_stream) {
        loan.release_after(stream->ref());
        CHECK(soon([&] { return on.failure(false) == CUDA_ERROR_ILLEGAL_ADDRESS; }));
    }
    // Its turn would be the second.
    std::vector<receiver> later;
    for (int i = 0; i < 2; ++i)
        CHECK_FALSE(accept(later.emplace_back(*in.io, *in.session)));
    CHECK(second.state().options().max_flows - second.state().free_places() == 1);
    auto part = (*in.session).part(1);
    receiver named{*in.io, part};
    CHECK(accept(named) == broken);
    // Nothing of its memory is lent any more; the other's is.
    in.kernel.deliver({{way::device, 1000, second_id}});
    callers[1]->send(1000);
    CHECK(receive(in, second_flow)->code == broken);
    CHECK_FALSE(bring(first_flow, *callers[0], test_session::first_id));
    CHECK(is_pattern(header, 100));
    loan.release();
    second_flow.close();
    fake_cuda::break_context(1, CUDA_SUCCESS);
    CHECK(on.failure(true) == CUDA_SUCCESS);
}

TEST_CASE("the first of several GPUs in error: nothing can arrive, and accepts fail")
{
    nic_into_gpu in;
    acceptor from{in.io->get_executor(), *in.session, {asio::ip::address_v4::loopback(), 0}};
    auto& on = gpu_or_skip();
    static_cast<void>(on.fetches());
    fake_cuda::break_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    sender to{in.wires};
    to.socket().connect(from.local_endpoint());
    receiver rx{*in.io, *in.session};
    auto const got = make_completion();
    from.async_accept(rx, noting{got});
    in.run_until([&] { return got->done(); });
    CHECK(got->code == detail::cuda::error_of(CUDA_ERROR_ILLEGAL_ADDRESS));
    fake_cuda::break_context(0, CUDA_SUCCESS);
    CHECK(on.failure(true) == CUDA_SUCCESS);
}

TEST_CASE("explain() of a session has the place of its GPU")
{
    clean_driver const clean;
    fake_cuda::set_attribute(0, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0x3b);
    rx_session const session{{.transport = transport::copy}, device_memory::on_gpu(0, 8 << 20)};
    CHECK_THAT(session.explain(), Catch::Matchers::ContainsSubstring("place: GPU 0 is 0000:3b:00.0"));
}

}  // namespace gpurx::test
