// SPDX-License-Identifier: Apache-2.0
//
// Loans that end where a protocol says: bounded receives, receives of an exact size, and loans that are split.
#include <algorithm>
#include <array>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <deque>
#include <limits>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "completion.hpp"
#include "flow/receiver_state.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

completion_ptr wait_for(world& in, completion_ptr const& result)
{
    in.run_until([&] { return result->done(); });
    return result;
}

completion_ptr receive_at_most(world& in, receiver& rx, std::size_t bytes)
{
    auto const result = make_completion();
    rx.async_receive(bytes, noting{result});
    return wait_for(in, result);
}

completion_ptr begin_exactly(receiver& rx, std::size_t bytes)
{
    auto result = make_completion();
    rx.async_receive_exactly(bytes, noting{result});
    return result;
}

rx_buffer receive_exactly(world& in, receiver& rx, std::size_t bytes)
{
    auto const result = wait_for(in, begin_exactly(rx, bytes));
    REQUIRE_FALSE(result->code);
    return std::move(result->loan);
}

// Reads the next `bytes` to the host, and tells whether they are those of the pattern.
bool read_pattern(world& in, receiver& rx, std::size_t bytes, std::size_t offset)
{
    std::vector<std::byte> header(bytes);
    auto const result = make_completion();
    async_read(rx, host_span{header}, noting{result});
    return !wait_for(in, result)->code && is_pattern(header, offset);
}

}  // namespace

TEST_CASE("a receive lends no byte beyond its bound")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(20000);
    std::size_t received = 0;
    for (std::size_t const most : {4000, 1, 3999, 12000}) {
        auto const got = receive_at_most(in, rx, most);
        REQUIRE_FALSE(got->code);
        CHECK(got->bytes == most);
        CHECK(is_pattern(got->loan, received));
        received += got->bytes;
    }
    CHECK(rx.available() == 0);
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("a receive of nothing completes at once, and takes nothing")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    for (auto const& got : {receive_at_most(in, rx, 0), wait_for(in, begin_exactly(rx, 0))}) {
        CHECK_FALSE(got->code);
        CHECK(got->loan.empty());
    }
    to.send(10);
    CHECK(receive_at_most(in, rx, 0)->loan.empty());
    CHECK(receive(in, rx)->bytes == 10);
}

TEST_CASE("frames of all sizes: a header to the host, the body on loan")
{
    auto const exact = GENERATE(true, false);
    world in{any_transport(), {.receive_memory = pages(1024), .loan_limit = pages(256)}};
    in.kernel.set_fragment_size(GENERATE(4096, 1448, 128));
    in.kernel.set_packing(true);
    sender to{in.wires};
    auto rx = in.flow(to);
    std::vector<std::size_t> const bodies{1, 4000, 0, 17, 70000, 4096, 100, 100, 100, 8000, 1, 120000, 3};
    std::thread feeder{[&] {
        for (auto const body : bodies)
            to.send(16 + body);
    }};
    std::size_t at = 0;
    std::deque<std::pair<std::size_t, rx_buffer>> kept;
    for (auto const body : bodies) {
        REQUIRE(read_pattern(in, rx, 16, at));
        at += 16;
        for (std::size_t missing = body; missing > 0;) {
            auto loan = exact ? receive_exactly(in, rx, missing) : std::move(receive_at_most(in, rx, missing)->loan);
            REQUIRE(!loan.empty());
            REQUIRE(loan.size() <= missing);
            missing -= loan.size();
            kept.emplace_back(at, std::move(loan));
            at += kept.back().second.size();
        }
        while (kept.size() > 5) {
            CHECK(is_pattern(kept.front().second, kept.front().first));
            kept.pop_front();
        }
    }
    feeder.join();
    for (auto const& [offset, loan] : kept)
        CHECK(is_pattern(loan, offset));
    kept.clear();
    CHECK(in.kernel.tokens_out() == 0);
    CHECK(in.session.state().total().tokens_out == 0);
}

TEST_CASE("the pages of a batch go back with the last of its parts")
{
    world in{nic_transport()};
    sender to{in.wires};
    std::optional rx{in.flow(to)};
    to.send(20000);
    REQUIRE(read_pattern(in, *rx, 16, 0));
    auto const batch = in.kernel.tokens_out();
    REQUIRE(batch == 5);
    std::array<rx_buffer, 3> parts;
    for (std::size_t i = 0; i < parts.size(); ++i)
        parts[i] = receive_exactly(in, *rx, 1000);
    auto rest = receive(in, *rx);
    CHECK(rest->bytes == 20000 - 16 - 3000);
    if (GENERATE(false, true)) {
        rx.reset();
        in.session.drop();
    }
    parts[1].release();
    rest->loan.release();
    parts[0].release();
    CHECK(in.kernel.tokens_out() == batch);
    CHECK(is_pattern(parts[2], 16 + 2000));
    parts[2].release();
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("a batch whose parts are lent counts as one loan, and no more when they are back")
{
    world in{nic_transport(), {.loan_limit = pages(2)}};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const& account = detail::receiver_access::state(rx)->connection()->place().on_loan;
    to.send(8000);
    REQUIRE(read_pattern(in, rx, 16, 0));
    CHECK(account == 0);
    auto first = receive_exactly(in, rx, 1000);
    CHECK(account == pages(2));
    // The limit is reached, by pages of which this is a part.
    auto second = receive_exactly(in, rx, 1000);
    CHECK(account == pages(2));
    first.release();
    second.release();
    // Not enough is carried: more is received, for all that was lent is back.
    to.send(4000);
    auto const third = receive_exactly(in, rx, 7000);
    CHECK(is_pattern(third, 16 + 2000));
    CHECK(account >= 7000);
}

TEST_CASE("a receive of an exact size waits for loans that fill the limit")
{
    world in{any_transport(), {.loan_limit = 16384}};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(8192);
    auto first = std::move(receive(in, rx)->loan);
    REQUIRE(first.size() == 8192);
    to.send(12000);
    auto const got = begin_exactly(rx, 12000);
    in.settle();
    CHECK_FALSE(got->done());
    CHECK(rx.stats().loan_waits == 1);
    if ((*in.session).transport() != transport::copy)
        CHECK_THAT((*in.session).explain(), Catch::Matchers::ContainsSubstring("waits for its loans"));
    first.release();
    wait_for(in, got);
    CHECK_FALSE(got->code);
    CHECK(got->bytes == 12000);
    CHECK(is_pattern(got->loan, 8192));
}

TEST_CASE("parts that come back while a receive waits for the limit let it go on")
{
    world in{nic_transport(), {.loan_limit = 8192}};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(8000);
    REQUIRE(read_pattern(in, rx, 16, 0));
    auto first = receive_exactly(in, rx, 1000);
    auto const got = begin_exactly(rx, 8000);
    to.send(2000);
    in.settle();
    CHECK_FALSE(got->done());
    first.release();
    wait_for(in, got);
    CHECK_FALSE(got->code);
    CHECK(is_pattern(got->loan, 1016));
}

TEST_CASE("a size that can never be on loan is refused, and the bytes stay receivable")
{
    world in{any_transport(), {.loan_limit = 8192}};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10000);
    auto const refused = wait_for(in, begin_exactly(rx, 8193));
    CHECK(refused->code == errc::beyond_loan_limit);
    CHECK(refused->loan.empty());
    CHECK_THAT(describe(refused->code, rx.why()), Catch::Matchers::ContainsSubstring("loan_limit"));
    CHECK(is_pattern(receive_exactly(in, rx, 8192), 0));
    CHECK(read_pattern(in, rx, 10000 - 8192, 8192));
}

TEST_CASE("bytes that do not fit into the memory are refused whatever the limit is")
{
    auto const memory = pages(512);
    auto const limit = GENERATE_COPY(8 * memory, std::numeric_limits<std::size_t>::max());
    auto const length = GENERATE_COPY(memory + 1, std::numeric_limits<std::size_t>::max());
    world in{any_transport(), {.loan_limit = limit}, memory};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10);
    auto const refused = begin_exactly(rx, length);
    in.settle();
    REQUIRE(refused->done());
    CHECK(refused->code == errc::beyond_loan_limit);
    CHECK(is_pattern(receive_exactly(in, rx, 10), 0));
}

TEST_CASE("bytes that take more pages than may be on loan are refused, and stay receivable")
{
    world in{nic_transport(), {.loan_limit = 16384}};
    in.kernel.set_fragment_size(100);  // a page each
    sender to{in.wires};
    auto rx = in.flow(to);
    // A ring's requests have no limit of pages, so the transport learns how large pieces are.
    for (int i = 0; i < 10; ++i) {
        to.send(100);
        CHECK(read_pattern(in, rx, 100, 100 * i));
    }
    to.send(4000);
    auto const refused = wait_for(in, begin_exactly(rx, 4000));
    CHECK(refused->code == errc::beyond_loan_limit);
    CHECK(rx.available() == 4000);
    CHECK(read_pattern(in, rx, 4000, 1000));
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("a stream that ends before an exact size leaves what came")
{
    auto const by_loan = GENERATE(true, false);
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(5000);
    auto const got = begin_exactly(rx, 8000);
    in.settle();
    CHECK_FALSE(got->done());
    to.send(1000);
    to.finish();
    wait_for(in, got);
    CHECK(got->code == error::eof);
    CHECK(got->loan.empty());
    if (by_loan)
        CHECK(is_pattern(receive_exactly(in, rx, 6000), 0));
    else
        CHECK(read_pattern(in, rx, 6000, 0));
    CHECK(receive(in, rx)->code == error::eof);
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("cancelling a receive of an exact size loses nothing that came")
{
    auto const type =
        GENERATE(asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total);
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(5000);
    asio::cancellation_signal stop;
    auto const got = make_completion();
    rx.async_receive_exactly(8000, asio::bind_cancellation_slot(stop.slot(), noting{got}));
    in.settle();
    REQUIRE(rx.available() == 5000);
    stop.emit(type);
    wait_for(in, got);
    CHECK(got->code == error::operation_aborted);
    to.send(4000);
    SECTION("for a receive")
    {
        auto const all = receive(in, rx);
        CHECK(all->bytes == 5000);
        CHECK(is_pattern(all->loan, 0));
        CHECK(is_pattern(receive_exactly(in, rx, 4000), 5000));
    }
    SECTION("for one of an exact size, whose end is in the middle of a batch")
    {
        auto const first = receive_exactly(in, rx, 1000);
        auto const second = receive_exactly(in, rx, 7999);
        CHECK(is_pattern(first, 0));
        CHECK(is_pattern(second, 1000));
        CHECK(is_pattern(receive_exactly(in, rx, 1), 8999));
    }
    SECTION("for a read")
    {
        CHECK(read_pattern(in, rx, 9000, 0));
    }
    SECTION("for nobody")
    {
        rx.close();
    }
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("a receive that is closed meanwhile gives back what came")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(5000);
    auto const got = begin_exactly(rx, 8000);
    in.settle();
    rx.close();
    wait_for(in, got);
    CHECK(got->code == error::operation_aborted);
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("a program splits what it received")
{
    world in{any_transport()};
    in.kernel.set_fragment_size(GENERATE(4096, 100));
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(6000);
    auto loan = receive_exactly(in, rx, 6000);
    auto const tokens = in.kernel.tokens_out();

    CHECK(loan.split(0).empty());
    CHECK_THROWS_AS(loan.split(6001), std::out_of_range);
    CHECK_THROWS_AS(rx_buffer{}.split(1), std::out_of_range);
    CHECK(loan.size() == 6000);

    auto front = loan.split(2500);
    CHECK(front.size() == 2500);
    CHECK(loan.size() == 3500);
    CHECK(is_pattern(front, 0));
    CHECK(is_pattern(loan, 2500));
    auto middle = front.split(1);
    CHECK(middle.size() == 1);
    CHECK(is_pattern(front, 1));
    auto all = loan.split(3500);
    CHECK(loan.empty());
    CHECK(is_pattern(all, 2500));

    std::array buffers{std::move(front), std::move(middle), std::move(all)};
    std::array order{0U, 1U, 2U};
    for (int i = GENERATE(0, 1, 2, 3, 4, 5); i > 0; --i)
        std::ranges::next_permutation(order);
    buffers[order[0]].release();
    buffers[order[1]].release_after(cuda_stream_ref{});
    CHECK(in.kernel.tokens_out() == tokens);
    buffers[order[2]].release();
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("parts of a loan are released by many threads")
{
    world in{any_transport()};
    sender to{in.wires};
    std::optional rx{in.flow(to)};
    for (int round = 0; round < 20; ++round) {
        to.send(30000);
        auto loan = receive_exactly(in, *rx, 30000);
        std::vector<rx_buffer> parts;
        for (int i = 0; i < 9; ++i)
            parts.push_back(loan.split(3000));
        std::vector<std::jthread> threads;
        for (auto& part : parts)
            threads.emplace_back([&part] {
                auto const half = part.split(1500);
                part.release();
            });
        loan.release();
        threads.clear();
        CHECK(in.kernel.tokens_out() == 0);
    }
}

TEST_CASE("parts outlive receiver, session and io_context")
{
    world in{any_transport()};
    sender to{in.wires};
    std::optional rx{in.flow(to)};
    to.send(9000);
    REQUIRE(read_pattern(in, *rx, 16, 0));
    auto first = receive_exactly(in, *rx, 1000);
    auto second = receive_exactly(in, *rx, 7000);
    auto third = second.split(10);
    rx.reset();
    in.session.drop();
    in.io.reset();
    in.kernel.reap_closed();
    CHECK(is_pattern(first, 16));
    CHECK(is_pattern(third, 1016));
    first.release();
    second.release();
    CHECK_FALSE(in.session.ended());
    CHECK(is_pattern(third, 1016));
    third.release();
    CHECK(in.session.ended());
    CHECK(in.kernel.tokens_out() == 0);
}

}  // namespace gpurx::test
