// SPDX-License-Identifier: Apache-2.0
//
// What async_read places, over both transports, and how it shares a stream with async_receive.
#include <array>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "completion.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

struct host_target {
    explicit host_target(std::size_t size) : bytes(size + 1, std::byte{0xee}) {}
    [[nodiscard]] host_span host() { return {bytes.data(), bytes.size() - 1}; }
    [[nodiscard]] memory_span device(memory_kind kind = memory_kind::host)
    {
        return {kind, reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size() - 1};
    }
    // The first `placed` are the stream's, from `offset`; the others were not touched.
    [[nodiscard]] bool holds(std::size_t placed, std::size_t offset) const
    {
        return is_pattern(std::span{bytes}.first(placed), offset) &&
               std::ranges::all_of(std::span{bytes}.subspan(placed), [](std::byte b) { return b == std::byte{0xee}; });
    }

    std::vector<std::byte> bytes;
};

completion_ptr start_read(receiver& rx, host_target& to, bool device = false)
{
    auto result = make_completion();
    if (device)
        async_read(rx, to.device(), noting{result});
    else
        async_read(rx, to.host(), noting{result});
    return result;
}

completion_ptr read(world& in, receiver& rx, host_target& to, bool device = false)
{
    auto result = start_read(rx, to, device);
    in.run_until([&] { return result->done(); });
    return result;
}

}  // namespace

TEST_CASE("the pages of all batches of a read go back together")
{
    world in{transport::devmem, {.max_flows = 1}, pages(64)};
    in.kernel.set_fragment_size(pages(1));
    sender to{in.wires};
    auto rx = in.flow(to);
    REQUIRE(in.session.state().read_share() == pages(16));
    to.send(pages(40));
    host_target body{pages(40)};
    CHECK(read(in, rx, body)->bytes == pages(40));
    CHECK(body.holds(pages(40), 0));
    CHECK(rx.stats().receive_calls >= 3);  // the share makes them
    CHECK(in.kernel.releases().size() == 1);
}

TEST_CASE("exactly the bytes that were asked for are placed")
{
    world in{any_transport()};
    auto const device = GENERATE(false, true);
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(20000);
    host_target first{16};
    host_target second{19984};
    CHECK(read(in, rx, first, device)->bytes == 16);
    CHECK(first.holds(16, 0));
    CHECK(read(in, rx, second, device)->bytes == 19984);
    CHECK(second.holds(19984, 16));
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("bytes that come piecemeal are waited for")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    host_target where{100};
    auto const got = start_read(rx, where);
    for (int i = 0; i < 9; ++i) {
        to.send(11);
        in.settle();
        CHECK_FALSE(got->done());
        CHECK(in.kernel.tokens_out() == 0);  // what was placed has been given back, before the wait
    }
    to.send(11);
    in.run_until([&] { return got->done(); });
    CHECK_FALSE(got->code);
    CHECK(got->bytes == 100);
    CHECK(where.holds(100, 0));
}

TEST_CASE("nothing to read succeeds, connected or not")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    host_target nothing{0};
    CHECK_FALSE(read(in, rx, nothing)->code);
    CHECK(rx.stats().receive_calls == 0);
    rx.close();
    CHECK_FALSE(read(in, rx, nothing)->code);
    host_target something{1};
    CHECK(read(in, rx, something)->code == error::not_connected);
}

TEST_CASE("memory of a GPU is refused and nothing is consumed")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10);
    host_target where{10};
    auto const got = make_completion();
    async_read(rx, where.device(memory_kind::device), cuda_stream_ref{}, noting{got});
    in.run_until([&] { return got->done(); });
    CHECK(got->code == errc::bad_destination);
    CHECK(got->bytes == 0);
    CHECK(read(in, rx, where)->bytes == 10);
    CHECK(where.holds(10, 0));
}

TEST_CASE("the end of the stream in the middle of a read tells how much was placed")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(70);
    to.finish();
    host_target where{100};
    auto const got = read(in, rx, where);
    CHECK(got->code == error::eof);
    CHECK(got->bytes == 70);
    CHECK(where.holds(70, 0));
    auto const after = read(in, rx, where);
    CHECK(after->code == error::eof);
    CHECK(after->bytes == 0);
    CHECK(receive(in, rx)->code == error::eof);
}

TEST_CASE("the last bytes before the end can be read exactly")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(100);
    to.finish();
    host_target where{100};
    CHECK_FALSE(read(in, rx, where)->code);
    host_target more{1};
    CHECK(read(in, rx, more)->code == error::eof);
}

TEST_CASE("async_receive returns the rest of a batch after a read")
{
    world in{nic_transport()};
    in.kernel.set_fragment_size(1000);
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(5000);
    host_target header{1500};
    CHECK(read(in, rx, header)->bytes == 1500);
    CHECK(rx.stats().receive_calls == 1);
    CHECK(in.kernel.tokens_out() == 5);
    auto const rest = receive(in, rx);
    CHECK(rx.stats().receive_calls == 1);  // the same batch
    CHECK(rest->loan.size() == 3500);
    REQUIRE(rest->loan.fragments().size() == 4);
    CHECK(rest->loan.fragments()[0].size == 500);
    CHECK(is_pattern(rest->loan, 1500));
    rest->loan.release();
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("a receiver that closes gives back what no operation took")
{
    world in{nic_transport()};
    auto const destroy = GENERATE(true, false);
    sender to{in.wires};
    std::optional rx{in.flow(to)};
    to.send(5000);
    host_target header{16};
    CHECK(read(in, *rx, header)->bytes == 16);
    CHECK(in.kernel.tokens_out() == 2);
    if (destroy)
        rx.reset();
    else
        rx->close();
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("bytes that were left are read before an end that came later")
{
    world in{nic_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(100);
    to.finish();
    host_target first{40};
    host_target second{100};
    CHECK(read(in, rx, first)->bytes == 40);
    auto const got = read(in, rx, second);
    CHECK(got->code == error::eof);
    CHECK(got->bytes == 60);
    CHECK(second.holds(60, 40));
}

TEST_CASE("cancelling a read in the middle tells how much was placed, and the rest is still there")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    host_target where{100};
    asio::cancellation_signal signal;
    auto const got = make_completion();
    async_read(rx, where.host(), asio::bind_cancellation_slot(signal.slot(), noting{got}));
    to.send(30);
    in.settle();
    REQUIRE_FALSE(got->done());
    SECTION("partial")
    {
        signal.emit(asio::cancellation_type::partial);
        in.settle();
        CHECK(got->code == error::operation_aborted);
        CHECK(got->bytes == 30);
        CHECK(where.holds(30, 0));
        to.send(70);
        host_target rest{70};
        CHECK(read(in, rx, rest)->bytes == 70);
        CHECK(rest.holds(70, 30));
    }
    SECTION("total comes too late")
    {
        signal.emit(asio::cancellation_type::total);
        in.settle();
        CHECK_FALSE(got->done());
        to.send(20);
        in.settle();
        signal.emit(asio::cancellation_type::total);
        in.settle();
        CHECK_FALSE(got->done());
        to.send(50);
        in.run_until([&] { return got->done(); });
        CHECK_FALSE(got->code);
        CHECK(where.holds(100, 0));
    }
    SECTION("partial after total")
    {
        signal.emit(asio::cancellation_type::total);
        in.settle();
        signal.emit(asio::cancellation_type::partial);
        in.settle();
        CHECK(got->code == error::operation_aborted);
        CHECK(got->bytes == 30);
    }
}

TEST_CASE("reads and receives of any size share a stream without a byte lost or doubled")
{
    world in{any_transport()};
    in.kernel.set_fragment_size(GENERATE(4096U, 700U));
    sender to{in.wires};
    auto rx = in.flow(to);
    std::mt19937 random{11};
    std::size_t consumed = 0;
    for (int round = 0; round < 400; ++round) {
        while (to.sent() < consumed + 12000)
            to.send(1 + random() % 8000);
        if (random() % 3 == 0) {
            auto const got = receive(in, rx);
            REQUIRE_FALSE(got->code);
            REQUIRE(is_pattern(got->loan, consumed));
            consumed += got->bytes;
        } else {
            host_target where{random() % 4 == 0 ? 1 + random() % 9000 : 1 + random() % 100};
            auto const got = read(in, rx, where, random() % 2 == 0);
            REQUIRE_FALSE(got->code);
            REQUIRE(where.holds(got->bytes, consumed));
            REQUIRE(got->bytes + 1 == where.bytes.size());
            consumed += got->bytes;
        }
    }
    CHECK(rx.stats().bytes() >= consumed);
}

TEST_CASE("a program that holds its whole loan limit can still read")
{
    world in{any_transport(), {.loan_limit = 8192}};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(8192);
    std::vector<rx_buffer> kept;
    for (std::size_t held = 0; held < 8192; held += kept.back().size())
        kept.push_back(std::move(receive(in, rx)->loan));
    to.send(20000);
    host_target where{20000};
    CHECK(read(in, rx, where)->bytes == 20000);
    CHECK(where.holds(20000, 8192));
    CHECK(rx.stats().loan_waits == 0);
}

TEST_CASE("a long read lets other handlers run")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    host_target where{24 << 20};
    auto const got = start_read(rx, where);
    // A sender on a thread of its own, so that there is always something to read.
    std::thread feeder{[&] { to.send(24 << 20); }};
    int turns = 0;
    std::function<void()> other = [&] {
        ++turns;
        if (!got->done())
            asio::post(*in.io, other);
    };
    asio::post(*in.io, other);
    in.run_until([&] { return got->done(); });
    feeder.join();
    CHECK(got->bytes == 24 << 20);
    CHECK(where.holds(24 << 20, 0));
    CHECK(turns >= 5);
}

TEST_CASE("small reads from one batch ask the kernel once")
{
    auto const kind = nic_transport();
    world in{kind};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(16000);
    for (std::size_t i = 0; i < 1000; ++i) {
        host_target where{16};
        REQUIRE(read(in, rx, where)->bytes == 16);
        REQUIRE(where.holds(16, 16 * i));
    }
    CHECK(rx.stats().receive_calls == 1);
    CHECK(rx.stats().release_calls == (kind == transport::devmem ? 1 : 0));
}

}  // namespace gpurx::test
