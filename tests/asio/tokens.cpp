// SPDX-License-Identifier: Apache-2.0
//
// Every kind of completion token works with every operation.

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <exception>
#include <future>
#include <gpurx/gpurx.hpp>
#include <memory>
#include <string>
#include <thread>

#include "completion.hpp"
#include "coroutine.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

// The exception of a co_await.
struct thrown {
    error_code code;
    std::string what;
    diagnostics why;
    bool is_ours = false;
};

template <class Awaitable>
asio::awaitable<thrown> failing(Awaitable operation)
{
    try {
        co_await std::move(operation);
    } catch (gpurx::system_error const& failure) {
        co_return thrown{failure.code(), failure.what(), failure.why(), true};
    } catch (boost::system::system_error const& failure) {
        co_return thrown{failure.code(), failure.what(), {}, false};
    }
    co_return thrown{};
}

}  // namespace

TEST_CASE("awaitables, by default")
{
    world in{any_transport()};
    run(in, [&]() -> asio::awaitable<void> {
        receiver rx{co_await asio::this_coro::executor, *in.session};
        co_await rx.async_connect(in.acceptor.local_endpoint());
        sender to{in.wires};
        to.socket() = in.acceptor.accept();
        to.send(10016);
        to.finish();

        std::array<std::byte, 16> header{};
        auto const placed = co_await async_read(rx, host_span{header});
        CHECK(placed == 16);
        CHECK(is_pattern(header, 0));
        std::size_t received = 16;
        for (;;) {
            auto [code, loan] = co_await rx.async_receive(asio::as_tuple(asio::use_awaitable));
            if (code) {
                CHECK(code == error::eof);
                break;
            }
            CHECK(is_pattern(loan, received));
            received += loan.size();
        }
        CHECK(received == 10016);
        bool thrown = false;
        try {
            co_await rx.async_receive();
        } catch (boost::system::system_error const& ended) {
            thrown = ended.code() == error::eof;
        }
        CHECK(thrown);
    });
}

TEST_CASE("an exception of the default token has the reason")
{
    world in{any_transport()};
    run(in, [&]() -> asio::awaitable<void> {
        auto const executor = co_await asio::this_coro::executor;
        receiver rx{executor, *in.session};
        std::array<std::byte, 16> header{};
        auto const unconnected = co_await failing(async_read(rx, host_span{header}));
        CHECK(unconnected.is_ours);
        CHECK(unconnected.code == error::not_connected);
        CHECK(unconnected.why == rx.why());
        CHECK(unconnected.what == describe(unconnected.code, rx.why()));
        CHECK(unconnected.why.operation == "read from");

        auto const unsent = co_await failing(rx.async_write_some(asio::buffer(header)));
        CHECK(unsent.is_ours);
        CHECK(unsent.code == error::bad_descriptor);
        CHECK(unsent.what == "write to connection: Bad file descriptor");

        auto const nobody = co_await failing(rx.async_connect(std::vector<asio::ip::tcp::endpoint>{}));
        CHECK(nobody.is_ours);
        CHECK(nobody.code == error::not_found);
        CHECK(nobody.why.operation == "connect");

        auto const there = in.acceptor.local_endpoint();
        co_await rx.async_connect(there);
        auto const twice = co_await failing(rx.async_connect(there));
        CHECK(twice.is_ours);
        CHECK(twice.code == error::already_connected);
        CHECK(twice.why.object == "127.0.0.1:" + std::to_string(there.port()));
        in.acceptor.accept().close();

        auto const read = co_await failing(rx.async_read_some(asio::buffer(header)));
        CHECK(read.code == error::eof);
        CHECK(read.what == describe(read.code, rx.why()));
        auto const received = co_await failing(rx.async_receive());
        CHECK(received.is_ours);
        CHECK(received.code == error::eof);
        CHECK(received.why.operation == "receive from");

        acceptor closed{executor, *in.session};
        auto const accepted = co_await failing(closed.async_accept());
        CHECK(accepted.is_ours);
        CHECK(accepted.code == error::bad_descriptor);
        CHECK(accepted.why == closed.why());
        auto const into = co_await failing(closed.async_accept(rx));
        CHECK(into.is_ours);
        CHECK(into.code == error::already_open);
        CHECK(into.why.operation == "accept from");

        auto const nowhere = reinterpret_cast<CUstream_st*>(std::uintptr_t{2});  // CU_STREAM_PER_THREAD
        auto const waited = co_await failing(async_wait(executor, cuda_stream_ref{nowhere}));
        CHECK(waited.is_ours);
        CHECK(waited.why.operation == "wait for");
    });
}

TEST_CASE("an exception of the default token is about its own operation")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.finish();
    std::array<thrown, 3> received;
    std::array<std::byte, 4> bytes{};
    thrown refused;
    for (auto const which : {0u, 1u, 2u}) {
        asio::co_spawn(
            *in.io,
            [&]() -> asio::awaitable<void> {
                if (which == 0)
                    received[0] = co_await failing(rx.async_receive());
                else if (which == 1)
                    received[1] = co_await failing(rx.async_receive(4));
                else
                    received[2] = co_await failing(rx.async_receive_exactly(4));
            },
            asio::detached);
        // Refused, as the other has not completed yet: why() is about this one then.
        asio::co_spawn(
            *in.io, [&]() -> asio::awaitable<void> { refused = co_await failing(async_read(rx, host_span{bytes})); },
            asio::detached);
        in.settle();
        CHECK(refused.code == errc::already_running);
        CHECK(refused.why.operation == "read from");
        CHECK(received[which].is_ours);
        CHECK(received[which].code == error::eof);
        CHECK(received[which].why.operation == "receive from");
    }
}

TEST_CASE("Asio's own use_awaitable, named, throws what it always has")
{
    world in{transport::copy};
    run(in, [&]() -> asio::awaitable<void> {
        receiver rx{co_await asio::this_coro::executor, *in.session};
        auto const received = co_await failing(rx.async_receive(asio::use_awaitable));
        CHECK_FALSE(received.is_ours);
        CHECK(received.code == error::not_connected);

        // And what is named by as_default_on; and this library's token where the operation is another's.
        auto other = asio::use_awaitable_t<>::as_default_on(receiver{rx.get_executor(), *in.session});
        CHECK_FALSE((co_await failing(other.async_receive())).is_ours);
        auto [code, loan] = co_await rx.async_receive(asio::as_tuple(gpurx::use_awaitable));
        CHECK(code == error::not_connected);
        asio::steady_timer timer{rx.get_executor()};
        co_await timer.async_wait(gpurx::use_awaitable);
    });
}

TEST_CASE("deferred: nothing happens before the operation is launched")
{
    world in{any_transport()};
    sender to{in.wires};
    std::optional rx{in.flow(to)};
    std::array<std::byte, 4> bytes{};
    auto receive = rx->async_receive(asio::deferred);
    auto receive_some = rx->async_receive(3, asio::deferred);
    auto receive_all = rx->async_receive_exactly(5, asio::deferred);
    auto read = async_read(*rx, host_span{bytes}, asio::deferred);
    to.send(16);
    in.settle();
    CHECK(rx->stats().receive_calls == 0);

    auto const first = make_completion();
    std::move(read)(noting{first});
    in.run_until([&] { return first->done(); });
    CHECK(first->bytes == 4);
    CHECK(is_pattern(bytes, 0));
    // The receiver may have moved by the time it is launched.
    auto other = std::move(*rx);
    rx.reset();
    auto const launch = [&in](auto operation) {
        auto result = make_completion();
        std::move(operation)(noting{result});
        in.run_until([&] { return result->done(); });
        return result;
    };
    auto const some = launch(std::move(receive_some));
    CHECK(some->bytes == 3);
    CHECK(is_pattern(some->loan, 4));
    auto const all = launch(std::move(receive_all));
    CHECK(all->bytes == 5);
    CHECK(is_pattern(all->loan, 7));
    auto const second = launch(std::move(receive));
    CHECK(second->bytes == 4);
    CHECK(is_pattern(second->loan, 12));

    receiver third{*in.io, *in.session};
    auto const connected = make_completion();
    third.async_connect(in.acceptor.local_endpoint(), asio::deferred)(noting{connected});
    in.run_until([&] { return connected->done(); });
    CHECK_FALSE(connected->code);
}

TEST_CASE("deferred: chained")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(100);
    auto const got = make_completion();
    rx.async_receive(asio::deferred(
        [](error_code code, rx_buffer loan) { return asio::deferred.values(code, std::move(loan)); }))(noting{got});
    in.run_until([&] { return got->done(); });
    CHECK(is_pattern(got->loan, 0));
}

TEST_CASE("futures", "[native]")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(104);
    std::array<std::byte, 4> bytes{};
    auto read = async_read(rx, host_span{bytes}, asio::use_future);
    in.settle();
    CHECK(read.get() == 4);
    auto some = rx.async_read_some(asio::buffer(bytes), asio::use_future);
    in.settle();
    CHECK(some.get() == 4);
    auto list =
        async_read(rx, std::array{destination::nowhere(2), destination{asio::buffer(bytes, 2)}}, asio::use_future);
    in.settle();
    CHECK(list.get() == 4);
    auto receive_some = rx.async_receive(2, asio::use_future);
    in.settle();
    CHECK(is_pattern(receive_some.get(), 12));
    auto receive_all = rx.async_receive_exactly(3, asio::use_future);
    in.settle();
    CHECK(is_pattern(receive_all.get(), 14));
    auto receive = rx.async_receive(asio::use_future);
    in.settle();
    CHECK(is_pattern(receive.get(), 17));
    receiver other{*in.io, *in.session};
    auto connected = other.async_connect(std::array{in.acceptor.local_endpoint()}, asio::use_future);
    in.run_until([&] { return connected.wait_for(0s) == std::future_status::ready; });  // the session's thread is asked
    CHECK(connected.get() == in.acceptor.local_endpoint());
    to.finish();
    auto ended = rx.async_receive(asio::as_tuple(asio::use_future));
    in.settle();
    CHECK(std::get<0>(ended.get()) == error::eof);
    auto thrown = rx.async_receive(asio::use_future);
    in.settle();
    CHECK_THROWS_AS(thrown.get(), boost::system::system_error);
}

TEST_CASE("move-only handlers")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    std::size_t got = 0;
    rx.async_receive([&got, own = std::make_unique<int>(5)](error_code, rx_buffer loan) {
        got = loan.size() + static_cast<std::size_t>(*own);
    });
    in.settle();
    to.send(10);
    in.run_until([&] { return got > 0; });
    CHECK(got == 15);
}

TEST_CASE("detached")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10);
    rx.async_receive(asio::detached);
    in.settle();
    CHECK(rx.stats().bytes() == 10);
    CHECK(in.kernel.tokens_out() == 0);
}

TEST_CASE("a parallel group keeps both results")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    asio::steady_timer timer{*in.io};
    auto const race = [&](std::chrono::milliseconds limit) {
        timer.expires_after(limit);
        auto group =
            asio::experimental::make_parallel_group(rx.async_receive(asio::deferred), timer.async_wait(asio::deferred));
        auto result = std::make_shared<completion>();
        group.async_wait(asio::experimental::wait_for_one{},
                         [result](std::array<std::size_t, 2>, error_code code, rx_buffer loan, error_code) {
                             noting note{result};
                             note(code, std::move(loan));
                         });
        in.run_until([&] { return result->done(); });
        return result;
    };
    SECTION("the timer wins: nothing was taken")
    {
        CHECK(race(5ms)->code == error::operation_aborted);
        to.send(10);
        CHECK(race(1h)->bytes == 10);
    }
    SECTION("the data win")
    {
        to.send(10);
        auto const got = race(1h);
        CHECK_FALSE(got->code);
        CHECK(is_pattern(got->loan, 0));
    }
    SECTION("both are ready: the data are delivered")
    {
        to.send(10);
        auto const got = race(0ms);
        CHECK_FALSE(got->code);
        CHECK(is_pattern(got->loan, 0));
    }
}

// As docs/threads.md has it.
TEST_CASE("a limit in time, in a coroutine")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const receive_for = [&](std::chrono::milliseconds limit) -> asio::awaitable<rx_buffer> {
        asio::steady_timer timer{*in.io, limit};
        auto [order, error, loan, timeout] = co_await asio::experimental::make_parallel_group(
                                                 rx.async_receive(asio::deferred), timer.async_wait(asio::deferred))
                                                 .async_wait(asio::experimental::wait_for_one{}, asio::use_awaitable);
        if (error)
            CHECK(error == asio::error::operation_aborted);
        co_return std::move(loan);
    };
    run(in, [&]() -> asio::awaitable<void> {
        auto none = co_await receive_for(5ms);
        CHECK(none.empty());
        to.send(10);
        auto some = co_await receive_for(1h);
        CHECK(is_pattern(some, 0));
        CHECK(some.size() == 10);
    });
}

TEST_CASE("a coroutine passes on only terminal cancellation, unless told otherwise")
{
    world in{any_transport()};
    auto const told = GENERATE(false, true);
    sender to{in.wires};
    auto rx = in.flow(to);
    asio::cancellation_signal signal;
    bool finished = false;
    auto const receive = [&]() -> asio::awaitable<void> {
        if (told)
            co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
        co_await rx.async_receive(asio::as_tuple(asio::use_awaitable));
    };
    asio::co_spawn(*in.io, receive,
                   asio::bind_cancellation_slot(signal.slot(), [&](std::exception_ptr) { finished = true; }));
    in.settle();
    signal.emit(asio::cancellation_type::total);
    in.settle();
    CHECK(finished == told);
    signal.emit(asio::cancellation_type::terminal);
    in.settle();
    CHECK(finished);
}

TEST_CASE("a timer that cancels a coroutine's operation")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    asio::cancellation_signal signal;
    error_code seen;
    bool finished = false;
    asio::co_spawn(
        *in.io,
        [&]() -> asio::awaitable<void> {
            auto [code, loan] = co_await rx.async_receive(asio::as_tuple(asio::use_awaitable));
            seen = code;
        },
        asio::bind_cancellation_slot(signal.slot(), [&](std::exception_ptr) { finished = true; }));
    in.settle();
    signal.emit(asio::cancellation_type::terminal);
    in.run_until([&] { return finished; });
    CHECK(seen == error::operation_aborted);
}

}  // namespace gpurx::test
