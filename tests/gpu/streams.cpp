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

#include "loopback.hpp"

namespace gpurx::test {

TEST_CASE("received bytes are in the GPU's memory once a stream has acquired them")
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
