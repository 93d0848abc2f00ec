// SPDX-License-Identifier: Apache-2.0
//
// What a loan survives, when its pages go back, and what happens at the limits.
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/syscalls.hpp"
#include "completion.hpp"
#include "eventually.hpp"
#include "flow/flow.hpp"
#include "flow/receiver_state.hpp"
#include "memory/page_pool.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

// Sends `size` bytes and lends them.
rx_buffer lend(world& in, sender& to, receiver& rx, std::size_t size)
{
    to.send(size);
    REQUIRE(eventually([&] { return rx.available() == size; }));
    auto got = receive(in, rx);
    REQUIRE(got->bytes == size);
    return std::move(got->loan);
}

// Bytes that wait in a socket.
int queued(int socket)
{
    int bytes = 0;
    REQUIRE(::ioctl(socket, SIOCINQ, &bytes) == 0);
    return bytes;
}

}  // namespace

TEST_CASE("a loan outlives receiver, session and io_context, in every order")
{
    enum part { of_receiver, of_session, of_context };
    using order = std::array<part, 3>;
    auto const kind = any_transport();
    auto const ends = GENERATE(order{of_receiver, of_session, of_context}, order{of_receiver, of_context, of_session},
                               order{of_session, of_receiver, of_context});
    auto const split = GENERATE(false, true);
    world in{kind};
    sender to{in.wires};
    std::optional rx{in.flow(to)};
    auto loan = lend(in, to, *rx, 10000);
    auto part = split ? loan.split(100) : rx_buffer{};
    auto const part_first = split && GENERATE(false, true);
    for (auto const end : ends) {
        if (end == of_receiver)
            rx.reset();
        else if (end == of_session)
            in.session.drop();
        else
            in.io.reset();
        // As the kernel would: pages of a socket that is closed are the NIC's again.
        CHECK(in.kernel.reap_closed() == (kind != transport::copy ? 1 : 0));
        REQUIRE(is_pattern(part, 0));
        REQUIRE(is_pattern(loan, part.size()));
    }
    CHECK_FALSE(in.session.ended());
    if (split) {
        (part_first ? part : loan).release();
        CHECK_FALSE(in.session.ended());
        CHECK(in.kernel.reap_closed() == (kind != transport::copy ? 1 : 0));
    }
    auto& last = split && !part_first ? part : loan;
    CHECK(is_pattern(last, split && part_first ? 100 : 0));
    last.acquire();
    last.release();
    CHECK(in.session.ended());
    CHECK(in.kernel.tokens_out() == 0);
    CHECK(in.kernel.reap_closed() == 0);  // with the last loan the socket is closed
}

TEST_CASE("loans of one flow end it with the last of them, whichever that is")
{
    world in{any_transport()};
    sender to{in.wires};
    std::optional rx{in.flow(to)};
    std::vector<rx_buffer> loans;
    for (int i = 0; i < 5; ++i)
        loans.push_back(lend(in, to, *rx, 5000));
    rx.reset();
    in.session.drop();
    for (auto const i : {3U, 0U, 4U, 1U}) {
        loans[i].release();
        CHECK_FALSE(in.session.ended());
        in.kernel.reap_closed();
        CHECK(is_pattern(loans[2], 10000));
    }
    loans[2].release();
    CHECK(in.session.ended());
}

TEST_CASE("data queued at close is dropped, though a loan keeps the socket", "[native]")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const loan = lend(in, to, rx, 5000);
    detail::unique_fd const socket{::dup(rx.native_handle())};
    to.send(70000);
    in.run_until([&] { return queued(socket.get()) == 70000; });
    rx.close();
    CHECK(queued(socket.get()) == 0);
    CHECK(is_pattern(loan, 0));
}

TEST_CASE("a loan moves, and is empty when it is released")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto first = lend(in, to, rx, 100);
    auto second = lend(in, to, rx, 200);
    CHECK(rx_buffer{}.empty());
    CHECK(rx_buffer{}.fragments().empty());

    rx_buffer moved{std::move(first)};
    CHECK(first.empty());
    CHECK(first.fragments().empty());
    CHECK(moved.size() == 100);
    moved = std::move(second);  // gives back what it had
    CHECK(moved.size() == 200);
    CHECK(is_pattern(moved, 100));
    CHECK(second.empty());
    auto& same = moved;
    moved = std::move(same);
    CHECK(moved.size() == 200);

    moved.release();
    CHECK(moved.empty());
    CHECK(moved.fragments().empty());
    moved.release();
    moved.acquire();
    moved.release_after(cuda_stream_ref{});
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("release_after on host memory gives back at once")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto loan = lend(in, to, rx, 100);
    loan.acquire();
    loan.release_after(cuda_stream_ref{});
    CHECK(loan.empty());
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("pages go back at once while the receiver is idle, waits, or is gone")
{
    auto const kind = nic_transport();
    world in{kind};
    sender to{in.wires};
    std::optional rx{in.flow(to)};
    std::vector<rx_buffer> loans;
    for (int i = 0; i < 3; ++i)
        loans.push_back(lend(in, to, *rx, 5000));

    loans[0].release();  // idle
    CHECK(in.kernel.tokens_out() == 4);
    CHECK(in.kernel.releases().size() == (kind == transport::devmem ? 1 : 0));
    auto const pending = make_completion();
    rx->async_receive(noting{pending});
    in.settle();
    loans[1].release();  // waits
    CHECK(in.kernel.tokens_out() == 2);
    rx.reset();
    loans[2].release();  // gone
    CHECK(in.kernel.tokens_out() == 0);
    CHECK(in.kernel.releases().size() == (kind == transport::devmem ? 3 : 0));
}

TEST_CASE("inside a step pages are gathered, handed over when a call is full, and all at its end")
{
    world in{transport::devmem, {.receive_memory = pages(4096), .loan_limit = pages(3000)}, pages(4096)};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const& flow = detail::receiver_access::state(rx)->connection();
    std::vector<rx_buffer> loans;
    SECTION("few: one call")
    {
        in.kernel.set_ascending(true);
        for (int i = 0; i < 10; ++i)
            loans.push_back(lend(in, to, rx, 5000));
        {
            detail::flow::step const step{*flow};
            loans.clear();
            CHECK(in.kernel.releases().empty());
            CHECK(in.kernel.tokens_out() == 20);
        }
        REQUIRE(in.kernel.releases().size() == 1);
        CHECK(in.kernel.releases()[0].pages == 20);
        CHECK(in.kernel.releases()[0].entries == 1);
    }
    SECTION("many entries: a call each 128")
    {
        for (int i = 0; i < 300; ++i)
            loans.push_back(lend(in, to, rx, 100));
        {
            detail::flow::step const step{*flow};
            for (std::size_t i = 0; i < 300; i += 2)  // every other: no two can be joined
                loans[i].release();
            CHECK(in.kernel.releases().size() == 1);
        }
        REQUIRE(in.kernel.releases().size() == 2);
        CHECK(in.kernel.releases()[0].entries == 128);
        CHECK(in.kernel.releases()[1].entries == 22);
    }
    SECTION("many pages: a call each 1024")
    {
        in.kernel.set_fragment_size(16);
        in.kernel.set_ascending(true);
        while (in.kernel.tokens_out() < 2500)
            loans.push_back(lend(in, to, rx, 16 * 100));
        {
            detail::flow::step const step{*flow};
            loans.clear();
            CHECK(in.kernel.releases().size() == 2);
        }
        REQUIRE(in.kernel.releases().size() == 3);
        CHECK(in.kernel.releases()[0].pages == 1024);
        CHECK(in.kernel.releases()[2].pages == 2500 - 2 * 1024);
    }
    CHECK(in.kernel.tokens_out() == loans.size() - static_cast<std::size_t>(std::ranges::count_if(
                                                       loans, [](auto const& loan) { return loan.empty(); })));
}

TEST_CASE("at the loan limit a receive waits until a loan returns")
{
    auto const kind = any_transport();
    auto const page = kind != transport::copy ? pages(1) : 4096;
    world in{kind, {.loan_limit = 3 * page}};
    in.kernel.set_fragment_size(page);
    sender to{in.wires};
    auto rx = in.flow(to);
    auto first = lend(in, to, rx, 2 * page);
    auto second = lend(in, to, rx, page);
    to.send(5 * page);
    REQUIRE(eventually([&] { return rx.available() == 5 * page; }));
    auto const got = make_completion();
    rx.async_receive(noting{got});
    in.settle();
    CHECK_FALSE(got->done());
    CHECK(rx.stats().loan_waits == 1);
    second.release();
    in.run_until([&] { return got->done(); });
    CHECK(got->bytes == page);
    CHECK(is_pattern(got->loan, 3 * page));
    first.release();
    auto const more = receive(in, rx);
    CHECK(more->bytes == 2 * page);
    CHECK(is_pattern(more->loan, 4 * page));
    CHECK(rx.stats().loan_waits == 1);
}

TEST_CASE("a loan of small packets counts with the pages that they take, so that others go on")
{
    // Half a memory of 2048 pages, a packet in each.
    constexpr std::size_t packet = 1448;
    auto const kind = nic_transport();
    world in{kind, {.loan_limit = pages(1024)}};
    in.kernel.set_fragment_size(packet);
    sender a{in.wires};
    sender b{in.wires};
    auto first = in.flow(a);
    auto second = in.flow(b);
    std::vector<rx_buffer> kept;
    std::size_t held = 0;
    auto pending = make_completion();
    first.async_receive(noting{pending});
    std::thread feeder{[&] { a.send(2500 * packet); }};
    for (;;) {
        in.run_until([&] { return pending->done() || first.stats().loan_waits > 0 || held >= 2040 * packet; });
        if (!pending->done())
            break;
        held += pending->bytes;
        kept.push_back(std::move(pending->loan));
        pending = make_completion();
        first.async_receive(noting{pending});
    }
    CHECK(first.stats().loan_waits == 1);
    CHECK(in.kernel.tokens_out() >= 1024);
    // A segment more at the most; a ring has no limit of pages but its own.
    CHECK(in.kernel.tokens_out() < 1024 + (kind == transport::devmem ? 17 : detail::zcrx_queue::completions));
    CHECK_THAT((*in.session).explain(), Catch::Matchers::ContainsSubstring("waits for its loans"));
    b.send(100 * packet);
    std::size_t received = 0;
    while (received < b.sent()) {
        auto const got = receive(in, second);
        REQUIRE(is_pattern(got->loan, received));
        received += got->bytes;
    }
    for (std::size_t at = 0; auto const& loan : kept) {
        REQUIRE(is_pattern(loan, at));
        at += loan.size();
    }
    kept.clear();
    while (held < 2500 * packet) {
        in.run_until([&] { return pending->done(); });
        REQUIRE(is_pattern(pending->loan, held));
        held += std::exchange(pending, make_completion())->bytes;
        first.async_receive(noting{pending});
    }
    feeder.join();
}

TEST_CASE("packets of a loan that share a page count with it once")
{
    world in{nic_transport(), {.loan_limit = pages(16)}};
    in.kernel.set_fragment_size(128);
    in.kernel.set_packing(true);
    sender to{in.wires};
    auto rx = in.flow(to);
    std::vector<rx_buffer> kept;
    for (int i = 0; i < 15; ++i)  // of 16 pieces each, 16 pages being allowed
        kept.push_back(lend(in, to, rx, 2048));
    CHECK(in.session.state().total().tokens_out == 15 * 16);
    CHECK(rx.stats().loan_waits == 0);
}

TEST_CASE("a loan that returned before the wait began is not missed")
{
    world in{any_transport(), {.loan_limit = 1000}};
    sender to{in.wires};
    auto rx = in.flow(to);
    for (int i = 0; i < 50; ++i) {
        auto loan = lend(in, to, rx, 1000);
        to.send(1000);
        auto const got = make_completion();
        rx.async_receive(noting{got});
        in.settle();
        REQUIRE_FALSE(got->done());
        loan.release();
        in.run_until([&] { return got->done(); });
        REQUIRE(got->bytes == 1000);
    }
    CHECK(rx.stats().loan_waits == 50);
}

TEST_CASE("cancelling a receive at the loan limit")
{
    world in{any_transport(), {.loan_limit = 1000}};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto loan = lend(in, to, rx, 1000);
    to.send(1000);
    asio::cancellation_signal signal;
    auto const got = make_completion();
    rx.async_receive(asio::bind_cancellation_slot(signal.slot(), noting{got}));
    in.settle();
    signal.emit(asio::cancellation_type::total);
    in.settle();
    CHECK(got->code == error::operation_aborted);
    loan.release();
    CHECK(receive(in, rx)->bytes == 1000);
}

TEST_CASE("closing while a receive waits for loans")
{
    world in{any_transport(), {.loan_limit = 1000}};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const loan = lend(in, to, rx, 1000);
    auto const got = make_completion();
    rx.async_receive(noting{got});
    in.settle();
    rx.close();
    in.settle();
    CHECK(got->code == error::operation_aborted);
}

TEST_CASE("copy: a flow waits when every page is on loan, and goes on when one returns")
{
    world in{transport::copy, {.max_flows = 2, .loan_limit = pages(256)}, pages(4)};
    auto const& pool = in.session.state().pages();
    sender a{in.wires};
    sender b{in.wires};
    auto first = in.flow(a);
    auto second = in.flow(b);
    std::vector<rx_buffer> kept;
    REQUIRE(pool.page_count() >= 4);
    while (kept.size() < pool.page_count())
        kept.push_back(lend(in, a, first, pool.page_size()));
    CHECK(pool.free_count() == 0);

    b.send(100);
    auto const got = make_completion();
    second.async_receive(noting{got});
    in.settle();
    CHECK_FALSE(got->done());
    CHECK(second.stats().loan_waits == 1);
    SECTION("a page returns")
    {
        kept[2].release();
        in.run_until([&] { return got->done(); });
        CHECK(is_pattern(got->loan, 0));
        CHECK(is_pattern(kept[0], 0));
        CHECK(is_pattern(kept[3], 3 * pool.page_size()));
    }
    SECTION("the flow that holds them is closed, and its loans die")
    {
        first.close();
        kept.clear();
        in.run_until([&] { return got->done(); });
        CHECK(is_pattern(got->loan, 0));
    }
    SECTION("the flow that waits is closed")
    {
        second.close();
        in.settle();
        CHECK(got->code == error::operation_aborted);
        kept.clear();
    }
}

TEST_CASE("copy: reads in place need no page")
{
    world in{transport::copy, {.max_flows = 1, .loan_limit = pages(256)}, pages(2)};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const a = lend(in, to, rx, pages(1));
    auto const b = lend(in, to, rx, pages(1));
    REQUIRE(in.session.state().pages().free_count() == 0);
    std::vector<std::byte> bytes(50000);
    to.send(bytes.size());
    auto const got = make_completion();
    async_read(rx, host_span{bytes.data(), bytes.size()}, noting{got});
    in.run_until([&] { return got->done(); });
    CHECK(is_pattern(bytes, pages(2)));
    CHECK(rx.stats().host_bytes == pages(2) + 50000);
}

TEST_CASE("copy: small receives share a page, and large ones are told in few fragments")
{
    world in{transport::copy, {.loan_limit = 1 << 22}};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto& pages = in.session.state().pages();
    std::vector<rx_buffer> kept;
    for (int i = 0; i < 100; ++i)
        kept.push_back(lend(in, to, rx, 100));
    CHECK(pages.free_count() == pages.page_count() - 1);
    for (std::size_t i = 0; i < 100; ++i)
        CHECK(is_pattern(kept[i], 100 * i));
    kept.clear();
    CHECK(pages.free_count() == pages.page_count() - 1);  // the flow fills it up

    to.send(300000);
    std::size_t received = 10000;
    while (received < to.sent()) {
        auto const got = receive(in, rx);
        CHECK(is_pattern(got->loan, received));
        CHECK(got->loan.fragments().size() <= 2);
        received += got->bytes;
    }
    rx.close();
    CHECK(pages.free_count() == pages.page_count());
}

TEST_CASE("copy: a page whose loans are gone is filled from its beginning again")
{
    world in{transport::copy};
    sender to{in.wires};
    auto rx = in.flow(to);
    std::uintptr_t address = 0;
    for (int i = 0; i < 1000; ++i) {
        auto const loan = lend(in, to, rx, 1000);
        if (address == 0)
            address = loan.fragments()[0].address;
        REQUIRE(loan.fragments()[0].address == address);
    }
}

}  // namespace gpurx::test
