// SPDX-License-Identifier: Apache-2.0
//
// Receivers of other executors, the completion tokens that these bring along, and receivers that were moved from.
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/version.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <concepts>
#include <optional>
#include <thread>
#include <type_traits>

#include "completion.hpp"
#include "coroutine.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

using on_io_context = basic_receiver<asio::io_context::executor_type>;
using on_strand = basic_receiver<asio::strand<asio::io_context::executor_type>>;
using with_tuples = asio::as_tuple_t<asio::use_awaitable_t<>>::as_default_on_t<receiver>;

static_assert(std::same_as<receiver, basic_receiver<asio::any_io_executor>>);
static_assert(std::same_as<receiver::rebind_executor<asio::io_context::executor_type>::other, on_io_context>);
static_assert(std::same_as<on_strand::executor_type, asio::strand<asio::io_context::executor_type>>);
static_assert(std::is_constructible_v<receiver, on_io_context&&>);
static_assert(!std::is_constructible_v<on_io_context, receiver&&>);  // any executor is not this one
static_assert(!std::is_copy_constructible_v<receiver>);
static_assert(std::is_nothrow_move_constructible_v<receiver> && std::is_nothrow_move_assignable_v<receiver>);

asio::awaitable<void> connect(with_tuples& rx, tcp::acceptor& acceptor, sender& to)
{
    auto const [refused] = co_await rx.async_connect(tcp::endpoint{});
    CHECK(refused);
    std::array const peers{acceptor.local_endpoint()};
    auto const [connected, peer] = co_await rx.async_connect(peers);
    CHECK_FALSE(connected);
    CHECK(peer == peers[0]);
    to.socket() = acceptor.accept();
}

asio::awaitable<void> read(with_tuples& rx, sender& to)
{
    to.send(20);
    std::array<std::byte, 5> bytes{};
    auto const [of_some, some] = co_await rx.async_read_some(asio::buffer(bytes));
    CHECK(some == 5);
    auto const [of_host, host] = co_await async_read(rx, host_span{bytes});
    CHECK(host == 5);
    memory_span const memory{memory_kind::host, reinterpret_cast<std::uintptr_t>(bytes.data()), bytes.size()};
    auto const [of_device, device] = co_await async_read(rx, memory, cuda_stream_ref{});
    CHECK(device == 5);
    auto const [of_list, all] = co_await async_read(rx, std::array{destination{host_span{bytes}}});
    CHECK(all == 5);
    CHECK(is_pattern(bytes, 15));
}

asio::awaitable<void> write_and_receive(with_tuples& rx, sender& to)
{
    auto const [of_write, written] = co_await rx.async_write_some(asio::buffer("x", 1));
    CHECK(written == 1);
    to.send(10);
    auto const [of_bounded, front] = co_await rx.async_receive(4);
    CHECK(front.size() == 4);
    auto const [of_exact, body] = co_await rx.async_receive_exactly(6);
    CHECK(is_pattern(body, 24));
    to.finish();
    auto const [ended, loan] = co_await rx.async_receive();
    CHECK(ended == error::eof);
    CHECK(loan.empty());
}

}  // namespace

TEST_CASE("a token that the executor names is the default of every operation")
{
    world in{any_transport()};
    with_tuples rx{in.io->get_executor(), *in.session};
    sender to{in.wires};
    run(in, connect(rx, in.acceptor, to));
    run(in, read(rx, to));
    run(in, write_and_receive(rx, to));
}

#if BOOST_VERSION >= 108600
TEST_CASE("adapters of tokens stand for a token by themselves")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10);
    run(in, [&]() -> asio::awaitable<void> {
        auto const [code, loan] = co_await rx.async_receive(asio::as_tuple);
        CHECK(loan.size() == 10);
    });
}
#endif

TEST_CASE("a receiver may have an executor of any type, and runs its handlers there")
{
    world in{any_transport()};
    sender to{in.wires};
    asio::strand<asio::io_context::executor_type> const strand{in.io->get_executor()};
    on_strand rx{strand, *in.session, in.connection(to)};
    CHECK(rx.get_executor() == strand);
    bool on_the_strand = false;
    rx.async_receive([&](error_code code, rx_buffer loan) {
        CHECK_FALSE(code);
        CHECK(is_pattern(loan, 0));
        on_the_strand = strand.running_in_this_thread();
    });
    to.send(10);
    in.run_until([&] { return on_the_strand; });

    on_io_context other{*in.io, *in.session};
    CHECK(other.get_executor() == in.io->get_executor());
}

TEST_CASE("a handler bound to a strand runs on it, whatever the strand is around")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const is_there = GENERATE(false, true);
    if (is_there)
        to.send(10);
    std::size_t bytes = 0;
    bool on_the_strand = false;
    auto const begin = [&](auto const& strand) {
        rx.async_receive(asio::bind_executor(strand, [&, strand](error_code code, rx_buffer const& loan) {
            on_the_strand = strand.running_in_this_thread();
            bytes = code ? 0 : loan.size();
        }));
        if (!is_there)
            to.send(10);
    };
    SECTION("an executor of erased type")
    {
        begin(asio::make_strand(rx.get_executor()));
        in.run_until([&] { return bytes > 0; });
    }
    SECTION("that of a thread pool, which is busy until then")
    {
        asio::thread_pool pool{2};
        std::optional work{asio::make_work_guard(pool)};
        begin(asio::make_strand(pool.get_executor()));
        work.reset();
        std::thread joins{[&] { pool.join(); }};
        in.settle();
        joins.join();
    }
    CHECK(bytes == 10);
    CHECK(on_the_strand);
}

TEST_CASE("a receiver can change the type of its executor, with its connection")
{
    world in{any_transport()};
    sender to{in.wires};
    on_io_context narrow{*in.io, *in.session, in.connection(to)};
    to.send(10);
    auto const got = make_completion();
    narrow.async_receive(noting{got});
    receiver wide{std::move(narrow)};
    CHECK(wide.is_open());
    CHECK(wide.get_executor() == in.io->get_executor());
    in.run_until([&] { return got->done(); });
    CHECK(got->bytes == 10);
    auto const adapted = asio::use_awaitable_t<>::as_default_on(std::move(wide));
    CHECK(adapted.is_open());
    CHECK_FALSE(narrow.is_open());
    CHECK_FALSE(wide.is_open());
}

TEST_CASE("a receiver that was moved from may be asked, assigned to and destroyed")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const executor = rx.get_executor();
    auto const owner = std::move(rx);

    CHECK_FALSE(rx.is_open());
    CHECK(rx.get_executor() == executor);
    CHECK(rx.native_handle() == -1);
    CHECK(rx.stats() == gpurx::stats{});
    CHECK(rx.available() == 0);
    error_code code;
    static_cast<void>(rx.local_endpoint(code));
    CHECK(code == error::bad_descriptor);
    static_cast<void>(rx.remote_endpoint(code));
    CHECK(code == error::bad_descriptor);
    CHECK_THROWS_AS(rx.local_endpoint(), system_error);
    rx.set_option(tcp::no_delay{true}, code);
    CHECK(code == error::bad_descriptor);
    tcp::no_delay option;
    rx.get_option(option, code);
    CHECK(code == error::bad_descriptor);
    rx.shutdown(tcp::socket::shutdown_both, code);
    CHECK(code == error::bad_descriptor);
    rx.cancel();
    rx.close();
    auto const again = std::move(rx);
    CHECK_FALSE(again.is_open());
    CHECK(owner.is_open());
}

TEST_CASE("operations of a receiver that was moved from complete with an error")
{
    world in{any_transport()};
    receiver rx{*in.io, *in.session};
    auto const owner = std::move(rx);
    std::array<std::byte, 5> bytes{};
    std::array const peers{in.acceptor.local_endpoint()};
    auto const code_of = [&](auto start) {
        auto const got = make_completion();
        start(noting{got});
        CHECK_FALSE(got->done());
        in.run_until([&] { return got->done(); });
        return got->code;
    };
    CHECK(code_of([&](noting token) { rx.async_receive(std::move(token)); }) == error::not_connected);
    CHECK(code_of([&](noting token) { rx.async_receive(1, std::move(token)); }) == error::not_connected);
    CHECK(code_of([&](noting token) { rx.async_receive_exactly(1, std::move(token)); }) == error::not_connected);
    CHECK(code_of([&](noting token) { async_read(rx, host_span{bytes}, std::move(token)); }) == error::not_connected);
    CHECK(code_of([&](noting token) { rx.async_read_some(asio::buffer(bytes), std::move(token)); }) ==
          error::not_connected);
    CHECK(code_of([&](noting token) { rx.async_write_some(asio::buffer(bytes), std::move(token)); }) ==
          error::bad_descriptor);
    CHECK(code_of([&](noting token) { rx.async_connect(peers[0], std::move(token)); }) == error::bad_descriptor);
    CHECK(code_of([&](noting token) { rx.async_connect(peers, std::move(token)); }) == error::bad_descriptor);
    sender to{in.wires};
    error_code code;
    rx.assign(in.connection(to), code);
    CHECK(code == error::bad_descriptor);

    sender other{in.wires};
    rx = receiver{*in.io, *in.session, in.connection(other)};
    CHECK(rx.is_open());
}

}  // namespace gpurx::test
