// SPDX-License-Identifier: Apache-2.0
//
// Transport zcrx against the fake kernel: its rings, what they can refuse, and how the NIC's queue ends. devmem.cpp has
// the kinds of data that arrive.
#include <array>
#include <atomic>
#include <boost/asio/strand.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <thread>
#include <vector>

#include "completion.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

using way = fake_kernel::way;

constexpr std::uint32_t own = test_session::first_id;
constexpr std::uint32_t other = 8;
constexpr std::uint32_t stranger = 9;

error_code system_error_of(int code)
{
    return {code, boost::system::system_category()};
}

// All of the stream up to `end`, checked; returns the loans.
std::vector<rx_buffer> receive_all(world& in, receiver& rx, std::size_t end, std::size_t from = 0)
{
    std::vector<rx_buffer> loans;
    for (std::size_t received = from; received < end;) {
        auto const got = receive(in, rx);
        REQUIRE_FALSE(got->code);
        REQUIRE(is_pattern(got->loan, received));
        received += got->bytes;
        loans.push_back(std::move(got->loan));
    }
    return loans;
}

// A thousand bytes each, so that each thread needs a ring of its own.
void receive_on_two_threads(world& in, receiver& rx, sender& to)
{
    for (std::size_t turn = 0; turn < 2; ++turn) {
        to.send(1000);
        completion_ptr got;
        std::thread{[&] { got = receive(in, rx); }}.join();
        CHECK_FALSE(got->code);
        CHECK(is_pattern(got->loan, 1000 * turn));
        CHECK(got->bytes == 1000);
    }
}

}  // namespace

TEST_CASE("a ring delivers with one call, and pages return without one", "[zcrx]")
{
    world in{transport::zcrx};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(20000);
    auto const got = receive(in, rx);
    CHECK(got->bytes == 20000);
    CHECK(got->loan.fragments().size() == 5);
    for (auto const& piece : got->loan.fragments())
        CHECK(lies_in(piece, in.session.state()));
    CHECK(is_pattern(got->loan, 0));
    CHECK(rx.stats().receive_calls == 1);
    CHECK(rx.stats().device_bytes == 20000);
    CHECK(rx.stats().tokens_out == 5);
    CHECK(in.session.state().zcrx().front()->waiting() == 0);
    got->loan.release();
    CHECK(rx.stats().release_calls == 0);
    CHECK(rx.stats().tokens_out == 0);
    CHECK((*in.session).stats().tokens_high_water == 5);
    CHECK(in.session.state().zcrx().front()->waiting() == 5);
}

TEST_CASE("each fragment of a page returns once", "[zcrx]")
{
    world in{transport::zcrx};
    in.kernel.set_packing(true);
    in.kernel.set_fragment_size(1448);
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(4096);
    auto const got = receive(in, rx);
    CHECK(got->loan.fragments().size() == 1);
    CHECK(rx.stats().tokens_out == 3);
    auto const all = in.session.state().memory().span().size() / pages(1);
    CHECK(in.kernel.free_pages(own) == all - 1);
    got->loan.release();
    CHECK(in.kernel.free_pages(own) == all);
}

TEST_CASE("a cancellation that finds nothing is repeated, and no byte is lost", "[zcrx]")
{
    world in{transport::zcrx};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(5000);
    in.kernel.miss_cancellations(GENERATE(1, 2, 7));
    receive_all(in, rx, 5000);
    to.send(3000);
    receive_all(in, rx, 8000, 5000);
}

TEST_CASE("a stream larger than a completion ring needs more requests", "[zcrx]")
{
    world in{transport::zcrx, {.receive_memory = pages(2048), .loan_limit = pages(2048)}, pages(4096)};
    in.kernel.set_fragment_size(16);
    sender to{in.wires};
    auto rx = in.flow(to);
    constexpr std::size_t pieces = 2 * detail::zcrx_queue::completions - 100;
    to.send(16 * pieces);
    auto const loans = receive_all(in, rx, 16 * pieces);
    CHECK(loans.size() == 2);
    CHECK(loans[0].size() == 16 * detail::zcrx_queue::completions);
}

TEST_CASE("bytes that missed the memory are received on the host, in their place", "[zcrx]")
{
    world in{transport::zcrx};
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.deliver({{way::device, 5000, own}, {way::linear, 3000}, {way::device, 1, own}, {way::plain, 10}});
    to.send(8011);
    receive_all(in, rx, 8011);
    CHECK(rx.stats().device_bytes == 5001);
    CHECK(rx.stats().linear_bytes == 3000);
    CHECK(rx.stats().host_bytes == 10);
    CHECK(rx.stats().bytes() == 8011);
}

TEST_CASE("payload that the kernel gives neither to a ring nor to recvmsg ends the flow", "[zcrx]")
{
    world in{transport::zcrx};
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.deliver({{way::device, 5000, own}, {way::lost, 10}});
    to.send(5010);
    receive_all(in, rx, 5000);
    CHECK(receive(in, rx)->code == errc::mixed_fragments);
    CHECK(receive(in, rx)->code == errc::mixed_fragments);
}

TEST_CASE("a flow is found on each queue of its session, and pages return to the queue that they are of", "[zcrx]")
{
    constexpr std::uint32_t third = own + 2 * test_session::next_part;
    world in{transport::zcrx, {.rx_queues = 3}, pages(6144)};
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.deliver({{way::device, 5000, third}, {way::device, 3000, own}, {way::device, 100, third}});
    to.send(8100);
    {
        auto const loans = receive_all(in, rx, 8100);
        REQUIRE(loans.size() == 3);
        auto const begin = in.session.state().memory().span().address();
        auto const part_of = [&](rx_buffer const& loan) {
            return (loan.fragments().front().address - begin) / pages(2048);
        };
        CHECK(part_of(loans[0]) == 2);
        CHECK(part_of(loans[1]) == 0);
        CHECK(part_of(loans[2]) == 2);
        CHECK(rx.stats().device_bytes == 8100);
        CHECK(rx.stats().resteered_bytes == 0);
        CHECK(in.kernel.free_pages(third) == 2048 - 3);
        CHECK(in.kernel.free_pages(own) == 2048 - 1);
    }
    CHECK(in.kernel.free_pages(third) == 2048);
    CHECK(in.kernel.free_pages(own) == 2048);
    // It is asked first from now on.
    auto const calls = rx.stats().receive_calls;
    in.kernel.deliver({{way::device, 100, third}});
    to.send(100);
    receive_all(in, rx, 8200, 8100);
    CHECK(rx.stats().receive_calls == calls + 1);
}

TEST_CASE("a flow that moves to another session's queue goes on with that queue's ring", "[zcrx]")
{
    world in{transport::zcrx};
    test_session second{transport::zcrx, in.kernel, {}, pages(1024), other};
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.deliver({{way::device, 5000, own}, {way::device, 6000, other}, {way::device, 100, own}});
    to.send(11100);
    auto loans = receive_all(in, rx, 11100);
    REQUIRE(loans.size() == 3);
    CHECK(lies_in(loans[0].fragments()[0], in.session.state()));
    CHECK(lies_in(loans[1].fragments()[0], second.state()));
    CHECK(lies_in(loans[2].fragments()[0], in.session.state()));
    CHECK(rx.stats().device_bytes == 5100);
    CHECK(rx.stats().resteered_bytes == 6000);
    CHECK(rx.stats().tokens_out == 5);
    CHECK((*in.session).stats().tokens_high_water == 3);
    CHECK((*second).stats().tokens_high_water == 2);

    // The loan holds the other session's memory, and the flow does not.
    second.drop();
    CHECK_FALSE(second.ended());
    CHECK(is_pattern(loans[1], 5000));
    loans.clear();
    CHECK(second.ended());
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("bytes in a queue of no session of the process end the flow, after the bytes before them", "[zcrx]")
{
    world in{transport::zcrx};
    std::vector<std::byte> memory(1 << 20);
    in.kernel.bind(stranger, memory);
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.deliver({{way::device, 5000, own}, {way::device, 5000, stranger}});
    to.send(10000);
    receive_all(in, rx, 5000);
    CHECK(receive(in, rx)->code == errc::foreign_memory);
    CHECK(receive(in, rx)->code == errc::foreign_memory);
}

TEST_CASE("one flow that several threads receive in turns arrives in order, by a ring for each", "[zcrx]")
{
    constexpr std::size_t size = 1 << 20;
    asio::io_context io;
    world in{transport::zcrx, {.loan_limit = pages(64)}};
    sender to{in.wires};
    auto strand = asio::make_strand(io);
    std::optional rx{in.flow(to, strand)};
    std::size_t received = 0;
    bool whole = true;
    std::array<std::atomic<int>, 3> turns{};
    thread_local std::size_t mine = 0;
    std::function<void()> next = [&] {
        rx->async_receive(asio::bind_executor(strand, [&](error_code code, rx_buffer loan) {
            ++turns[mine];
            whole = whole && !code && is_pattern(loan, received);
            received += loan.size();
            if (!code && received < size)
                // Not by this thread, if another one is free.
                asio::post(io, [&] { asio::post(strand, next); });
        }));
    };
    asio::post(strand, next);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < turns.size(); ++i)
        threads.emplace_back([&, i] {
            mine = i;
            io.run();
        });
    to.send(size);
    for (auto& each : threads)
        each.join();
    CHECK(whole);
    CHECK(received == size);
    // The rings of threads that have ended are closed; a receive here makes another.
    rx.reset();
}

TEST_CASE("a thread's ring that the kernel refuses fails the receive, and the next one makes it", "[zcrx]")
{
    world in{transport::zcrx};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(1000);
    SECTION("no ring")
    {
        in.kernel.fail_setup(EMFILE);
        CHECK(receive(in, rx)->code == system_error_of(EMFILE));
    }
    SECTION("no import")
    {
        in.kernel.fail_register(ENOMEM);
        CHECK(receive(in, rx)->code == system_error_of(ENOMEM));
    }
    receive_all(in, rx, 1000);
}

TEST_CASE("a thread takes a ring that was made for it, and imports nothing", "[zcrx]")
{
    world in{transport::zcrx};
    auto& queue = *in.session.state().zcrx().front();
    queue.add_spare_rings(2);
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.fail_register(EPERM);  // as a thread without CAP_NET_ADMIN meets it
    receive_on_two_threads(in, rx, to);
    to.send(1000);
    CHECK(receive(in, rx)->code == system_error_of(EPERM));
}

TEST_CASE("a queue that was handed on serves as many threads as rings came with it", "[zcrx]")
{
    world in{transport::copy};
    auto memory = session_memory::on_host(pages(256));
    in.kernel.bind(stranger, memory.seen_by_nic);
    auto granted = detail::zcrx_queue::open(
        {.interface = "fake0",
         .ifindex = 1,
         .queue = stranger,
         .memory = {.dmabuf_fd = static_cast<int>(stranger), .offset = 0, .size = memory.seen_by_nic.size()}});
    std::vector<detail::io_ring> rings;
    std::vector<detail::unshared_fd> inherited;
    // Any ring that has the queue will do, and here only this one has the refill ring in its file.
    inherited.emplace_back([&] { return ::dup(in.kernel.ring_that_registered(stranger)); });
    for (int i = 0; i < 2; ++i) {
        rings.push_back(detail::zcrx_queue::make_ring());
        inherited.emplace_back([&] { return ::dup(rings.back().fd()); });
    }
    auto const known = granted->hand_on(rings);
    rings.clear();
    granted.reset();

    auto queue = detail::zcrx_queue::adopt(known, std::move(inherited));
    in.kernel.watch(queue);
    auto session = detail::session_access::handle(detail::session_state::create(
        {.max_flows = 2, .lock_up_limit = 0ms}, memory.state,
        std::make_unique<fake_nic>(std::make_shared<nic_log>(), std::vector{std::move(queue)}, fake_kernel::page_size),
        "test"));
    sender to{in.wires};
    receiver rx{in.io->get_executor(), session, in.connection(to)};
    in.kernel.deliver({{way::device, 3000, stranger}});
    receive_on_two_threads(in, rx, to);
    CHECK(in.kernel.free_pages(stranger) == 256);
    to.send(1000);
    CHECK(receive(in, rx)->code == system_error_of(EPERM));
}

TEST_CASE("a call of a ring that fails is an error of the receive", "[zcrx]")
{
    world in{transport::zcrx};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(1000);
    SECTION("before the kernel has the request: nothing is lost")
    {
        in.kernel.fail_enter(ENOMEM, 0);
        CHECK(receive(in, rx)->code == system_error_of(ENOMEM));
        receive_all(in, rx, 1000);
    }
    SECTION("afterwards: the stream may have a hole, and the ring is closed")
    {
        in.kernel.miss_cancellations(1);
        in.kernel.fail_enter(EBADF, 1);
        auto const got = receive(in, rx);
        CHECK(got->bytes == 1000);
        CHECK(receive(in, rx)->code == system_error_of(EPROTO));
        CHECK(receive(in, rx)->code == system_error_of(EPROTO));
        got->loan.release();
        rx.close();
        // Another flow of the thread has a new ring.
        sender second{in.wires};
        auto fresh = in.flow(second);
        second.send(1000);
        receive_all(in, fresh, 1000);
        CHECK(in.kernel.take_violations() == std::vector<std::string>{});
    }
}

TEST_CASE("urgent data do not stop a stream, nor keep a thread busy", "[zcrx]")
{
    world in{transport::zcrx};
    sender to{in.wires};
    auto rx = in.flow(to);
    in.kernel.deliver({{way::device, 5000, own}, {way::urgent, 1}, {way::device, 100, own}});
    to.send(5101);
    receive_all(in, rx, 5000);
    receive_all(in, rx, 5101, 5001);
    CHECK(in.kernel.receive_calls() < 10);
}

TEST_CASE("the end of a request that is never told breaks the stream, and closes the ring", "[zcrx]")
{
    world in{transport::zcrx};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(1000);
    to.finish();
    in.kernel.lose_end();
    auto const got = receive(in, rx);
    CHECK(got->bytes == 1000);
    CHECK(receive(in, rx)->code == system_error_of(EPROTO));
    got->loan.release();
    // Another flow of the thread has a new ring.
    sender second{in.wires};
    auto fresh = in.flow(second);
    second.send(1000);
    receive_all(in, fresh, 1000);
}

TEST_CASE("a lost completion that no request needs breaks no later request of the ring", "[zcrx]")
{
    world in{transport::zcrx};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(1000);
    in.kernel.lose_cancellation();
    receive_all(in, rx, 1000);
    to.send(1000);
    in.kernel.miss_cancellations(1);
    receive_all(in, rx, 2000, 1000);
    to.send(1000);
    receive_all(in, rx, 3000, 2000);
}

TEST_CASE("a completion that lies beyond the end of the memory ends the flow", "[zcrx]")
{
    world in{transport::zcrx};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(5000);
    in.kernel.lie_about_offset();
    CHECK(receive(in, rx)->code == system_error_of(EPROTO));
    CHECK(receive(in, rx)->code == system_error_of(EPROTO));
}

TEST_CASE("a full refill ring is handed to the kernel", "[zcrx]")
{
    // As many fragments as places in the ring, twice: a page each.
    world in{transport::zcrx, {.max_flows = 1}, pages(64)};
    in.kernel.set_packing(true);
    in.kernel.set_fragment_size(16);
    sender to{in.wires};
    auto rx = in.flow(to);
    std::vector<rx_buffer> loans;
    to.send(16 * 200);
    loans = receive_all(in, rx, 16 * 200);
    CHECK(rx.stats().release_calls == 0);
    loans.clear();
    CHECK(rx.stats().release_calls == 3);
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("pages for which a forbidden flush leaves no room go with the next loan", "[zcrx]")
{
    world in{transport::zcrx, {.max_flows = 1}, pages(64)};
    in.kernel.set_packing(true);
    in.kernel.set_fragment_size(16);
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(16 * 70);
    auto loans = receive_all(in, rx, 16 * 70);
    in.kernel.fail_release(EPERM);
    loans.clear();
    CHECK(rx.stats().release_failures == 1);
    CHECK(rx.stats().tokens_out == 0);
    CHECK(in.session.state().zcrx().front()->waiting() == 64);
    to.send(16 * 20);
    receive_all(in, rx, 16 * 90, 16 * 70);
    CHECK(rx.stats().release_failures == 1);
    CHECK(in.session.state().zcrx().front()->waiting() == 26);
}

TEST_CASE("the queue ends after the last loan", "[zcrx]")
{
    rx_buffer kept;
    {
        world in{transport::zcrx};
        sender to{in.wires};
        std::optional rx{in.flow(to)};
        to.send(5000);
        kept = std::move(receive(in, *rx)->loan);
        rx.reset();
        in.session.drop();
        CHECK(in.session.nic().alive);
        CHECK(is_pattern(kept, 0));
        kept.release();
        in.kernel.reap_closed();
        CHECK_FALSE(in.session.nic().alive);
    }
}

TEST_CASE("memory of a session is refused for another, if one of them uses io_uring", "[zcrx]")
{
    auto const kind = nic_transport();
    world in{kind};
    auto const span = in.session.state().memory().span();
    using detail::session_state;
    auto const second_half =
        memory_span{span.kind(), span.address() + span.size() / 2, span.size()};  // and beyond the end
    auto const behind = memory_span{span.kind(), span.address() + span.size(), span.size()};
    for (auto const& memory : {span, second_half}) {
        CHECK_THROWS_AS(session_state::claim(memory, transport::zcrx), system_error);
        CHECK((session_state::try_claim(memory, transport::devmem) == nullptr) == (kind == transport::zcrx));
    }
    CHECK(session_state::try_claim(behind, transport::zcrx) != nullptr);
    // Until the NIC has let go of it.
    in.session.nic().hold();
    std::thread last_user{[&] { in.session.drop(); }};
    in.session.nic().wait_until_busy();
    CHECK(session_state::try_claim(span, transport::zcrx) == nullptr);
    in.session.nic().let_go();
    last_user.join();
    // A session that is being opened has it already.
    auto const first = session_state::claim(span, transport::zcrx);
    CHECK_THROWS_AS(session_state::claim(span, transport::copy), system_error);
}

TEST_CASE("sixteen threads give pages of one queue back at once, and none is lost", "[zcrx]")
{
    world in{transport::zcrx, {.receive_memory = pages(1024), .loan_limit = pages(1024)}, pages(2048)};
    in.kernel.set_fragment_size(pages(1));
    sender to{in.wires};
    auto rx = in.flow(to);
    for (std::size_t round = 0; round < 4; ++round) {
        std::vector<rx_buffer> loans;
        for (std::size_t i = 0; i < 160; ++i) {
            auto const at = to.sent();
            to.send(pages(1));
            for (auto& loan : receive_all(in, rx, at + pages(1), at))
                loans.push_back(std::move(loan));
        }
        std::vector<std::thread> threads;
        for (std::size_t i = 0; i < 16; ++i)
            threads.emplace_back([&, i] {
                for (std::size_t at = i; at < loans.size(); at += 16)
                    loans[at].release();
            });
        for (auto& each : threads)
            each.join();
        CHECK(in.kernel.tokens_out() == 0);
    }
}

}  // namespace gpurx::test
