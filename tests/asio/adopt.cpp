// SPDX-License-Identifier: Apache-2.0
//
// A connection that a receiver takes over, with what was read from it before; and what can be done with
// a connection besides receiving.
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <gpurx/acceptor.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "completion.hpp"
#include "descriptors.hpp"
#include "tcp_backlog.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

completion_ptr read(world& in, receiver& rx, std::span<std::byte> to)
{
    auto got = make_completion();
    async_read(rx, host_span{to}, noting{got});
    in.run_until([&] { return got->done(); });
    return got;
}

}  // namespace

TEST_CASE("a receiver that is not open takes a connection over")
{
    world in{any_transport(), {.max_flows = 1}};
    receiver rx{*in.io, *in.session};
    sender to{in.wires};
    rx.assign(in.connection(to));
    CHECK(rx.is_open());
    to.send(10);
    CHECK(receive(in, rx)->bytes == 10);

    // It has one, and keeps it.
    sender other{in.wires};
    error_code code;
    rx.assign(in.connection(other), code);
    CHECK(code == error::already_open);
    sender third{in.wires};
    CHECK_THROWS_AS(rx.assign(in.connection(third)), system_error);
    to.send(10);
    CHECK(receive(in, rx)->bytes == 10);
    rx.close();
    sender next{in.wires};
    rx.assign(in.connection(next), code);
    CHECK_FALSE(code);
    next.send(5);
    CHECK(receive(in, rx)->bytes == 5);
}

TEST_CASE("a program that is executed gets no descriptor of a session, a flow or an acceptor")
{
    world in{any_transport()};
    sender adopted{in.wires};
    sender called{in.wires};
    auto accepted = in.connection(adopted);
    called.socket().open(tcp::v4());
    auto before = inherited_descriptors();
    // Asio has made it without the flag; it is the receiver's from here on.
    REQUIRE(before.erase(accepted.native_handle()) == 1);
    receiver rx{*in.io, *in.session, std::move(accepted)};
    CHECK(inherited_descriptors() == before);
    adopted.send(10);
    CHECK(receive(in, rx)->bytes == 10);
    acceptor from{*in.io, *in.session, {asio::ip::address_v4::loopback(), 0}};
    called.socket().connect(from.local_endpoint());
    receiver into{*in.io, *in.session};
    auto const done = make_completion();
    from.async_accept(into, noting{done});
    in.run_until([&] { return done->done(); });
    REQUIRE_FALSE(done->code);
    receiver connected{*in.io, *in.session};
    auto const stands = make_completion();
    connected.async_connect(in.acceptor.local_endpoint(), noting{stands});
    in.run_until([&] { return stands->done(); });
    REQUIRE_FALSE(stands->code);
    CHECK(inherited_descriptors() == before);
}

TEST_CASE("a connection for which the session has no place is closed")
{
    world in{any_transport(), {.max_flows = 1}};
    sender a{in.wires};
    auto const rx = in.flow(a);
    receiver second{*in.io, *in.session};
    sender b{in.wires};
    error_code code;
    second.assign(in.connection(b), code);
    CHECK(code == errc::too_many_flows);
    CHECK_FALSE(second.is_open());
    std::byte byte{};
    b.socket().read_some(asio::buffer(&byte, 1), code);
    CHECK(code);
}

TEST_CASE("a receiver that is connecting takes no connection over")
{
    world in{any_transport()};
    full_backlog busy{in.wires};
    receiver rx{*in.io, *in.session};
    auto const connected = make_completion();
    rx.async_connect(busy.endpoint(), noting{connected});
    in.settle();
    sender to{in.wires};
    error_code code;
    rx.assign(in.connection(to), code);
    CHECK((code == errc::already_running || code == error::already_open));
    CHECK_FALSE(connected->done());
}

TEST_CASE("bytes that were read before are delivered first")
{
    auto const kind = any_transport();
    world in{kind};
    sender to{in.wires};
    auto accepted = in.connection(to);
    to.send(100);
    std::vector<std::byte> early(30);
    asio::read(accepted, asio::buffer(early));
    to.send(100);
    receiver rx{*in.io, *in.session, std::move(accepted), asio::buffer(early)};
    std::ranges::fill(early, std::byte{});  // it has a copy
    CHECK(rx.available() == 200);
    CHECK(rx.stats().host_bytes == 30);
    SECTION("as a loan, which keeps them")
    {
        auto const first = receive(in, rx);
        CHECK(first->bytes == 30);
        CHECK(is_pattern(first->loan, 0));
        auto const second = receive(in, rx);
        CHECK(is_pattern(second->loan, 30));
        rx.close();
        CHECK(is_pattern(first->loan, 0));
    }
    SECTION("by a read, across their end")
    {
        std::vector<std::byte> bytes(200);
        CHECK(read(in, rx, std::span{bytes}.first(10))->bytes == 10);
        CHECK(read(in, rx, std::span{bytes}.subspan(10))->bytes == 190);
        CHECK(is_pattern(bytes, 0));
    }
    SECTION("by a read of some, and then as a loan")
    {
        std::vector<std::byte> bytes(20);
        auto const some = make_completion();
        rx.async_read_some(asio::buffer(bytes), noting{some});
        in.run_until([&] { return some->done(); });
        CHECK(some->bytes == 20);
        CHECK(is_pattern(bytes, 0));
        auto const rest = receive(in, rx);
        CHECK(rest->bytes == 10);
        CHECK(is_pattern(rest->loan, 20));
    }
    SECTION("or by nobody")
    {
        rx.close();
    }
    CHECK(rx.stats().host_bytes == (kind != transport::copy ? 30 : rx.stats().bytes()));
}

TEST_CASE("bytes that were read before come even if the peer has gone")
{
    world in{any_transport()};
    sender to{in.wires};
    auto accepted = in.connection(to);
    to.finish();
    auto const early = pattern(0, 10);
    receiver rx{*in.io, *in.session};
    rx.assign(std::move(accepted), asio::buffer(early));
    CHECK(receive(in, rx)->bytes == 10);
    CHECK(receive(in, rx)->code == error::eof);
}

TEST_CASE("options of the socket")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    rx.set_option(tcp::no_delay{true});
    tcp::no_delay option;
    rx.get_option(option);
    CHECK(option.value());
    error_code code;
    rx.set_option(tcp::no_delay{false}, code);
    CHECK_FALSE(code);
    rx.get_option(option, code);
    CHECK_FALSE(option.value());

    rx.close();
    rx.set_option(tcp::no_delay{true}, code);
    CHECK(code == error::bad_descriptor);
    CHECK_THROWS_AS(rx.set_option(tcp::no_delay{true}), system_error);
    CHECK_THROWS_AS(rx.get_option(option), system_error);
}

TEST_CASE("one direction can be ended by itself")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    rx.shutdown(tcp::socket::shutdown_send);
    std::byte byte{};
    error_code code;
    to.socket().read_some(asio::buffer(&byte, 1), code);
    CHECK(code == error::eof);
    to.send(10);
    CHECK(receive(in, rx)->bytes == 10);
    // A receive that waits sees the end.
    auto const got = make_completion();
    rx.async_receive(noting{got});
    in.settle();
    rx.shutdown(tcp::socket::shutdown_receive);
    in.run_until([&] { return got->done(); });
    CHECK(got->code == error::eof);
    rx.close();
    CHECK_THROWS_AS(rx.shutdown(tcp::socket::shutdown_both), system_error);
}

TEST_CASE("available() counts the bytes that are received without waiting")
{
    world in{any_transport()};
    sender to{in.wires};
    receiver rx{*in.io, *in.session};
    CHECK(rx.available() == 0);
    rx.assign(in.connection(to));
    CHECK(rx.available() == 0);
    to.send(1000);
    CHECK(rx.available() == 1000);
    std::vector<std::byte> bytes(400);
    read(in, rx, bytes);
    CHECK(rx.available() == 600);
}

TEST_CASE("cancel() ends what is pending, and the connection goes on")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const received = make_completion();
    rx.async_receive(noting{received});
    std::vector<std::byte> const message(64 << 20);
    auto const written = make_completion();
    rx.async_write_some(asio::buffer(message), noting{written});
    in.run_until([&] { return written->done(); });
    auto const stuck = make_completion();
    asio::async_write(rx, asio::buffer(message), noting{stuck});
    in.settle();
    REQUIRE_FALSE(stuck->done());
    rx.cancel();
    CHECK_FALSE(received->done());
    in.run_until([&] { return received->done() && stuck->done(); });
    CHECK(received->code == error::operation_aborted);
    CHECK(stuck->code == error::operation_aborted);
    CHECK(rx.is_open());
    to.send(10);
    CHECK(receive(in, rx)->bytes == 10);
}

TEST_CASE("cancel() ends a read in its middle and tells how much was placed")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    std::vector<std::byte> bytes(100);
    auto const got = make_completion();
    async_read(rx, host_span{bytes}, noting{got});
    to.send(40);
    in.settle();
    rx.cancel();
    in.run_until([&] { return got->done(); });
    CHECK(got->code == error::operation_aborted);
    CHECK(got->bytes == 40);
    // It ends that operation only, and nothing that comes after it.
    rx.cancel();
    to.send(60);
    CHECK(read(in, rx, std::span{bytes}.subspan(40))->bytes == 60);
    CHECK(is_pattern(bytes, 0));
}

TEST_CASE("cancel() takes no success back")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10);
    auto const got = make_completion();
    rx.async_receive(noting{got});
    rx.cancel();
    in.run_until([&] { return got->done(); });
    CHECK_FALSE(got->code);
    CHECK(got->bytes == 10);
}

TEST_CASE("cancel() ends a connect, and the receiver is free for another")
{
    world in{any_transport()};
    full_backlog busy{in.wires};
    receiver rx{*in.io, *in.session};
    auto const connected = make_completion();
    rx.async_connect(busy.endpoint(), noting{connected});
    in.settle();
    rx.cancel();
    in.run_until([&] { return connected->done(); });
    CHECK(connected->code == error::operation_aborted);
    CHECK_FALSE(rx.is_open());
    auto const again = make_completion();
    rx.async_connect(in.acceptor.local_endpoint(), noting{again});
    in.run_until([&] { return again->done(); });
    CHECK_FALSE(again->code);
}

TEST_CASE("the receiver has the diagnostics of an error")
{
    world in{any_transport(), {.max_flows = 1}};
    sender to{in.wires};
    auto rx = in.flow(to);
    CHECK(rx.why() == diagnostics{});
    auto const peer = "127.0.0.1:" + std::to_string(to.socket().local_endpoint().port());
    SECTION("of a receive")
    {
        to.finish();
        auto const ended = receive(in, rx);
        CHECK(rx.why().operation == "receive from");
        CHECK(rx.why().object == "connection of " + peer);
        CHECK(describe(ended->code, rx.why()) == "receive from connection of " + peer + ": End of file");
        rx.close();
        CHECK(rx.why().object == "connection");
    }
    SECTION("of a read")
    {
        std::byte byte{};
        auto const got = make_completion();
        async_read(rx, memory_span{memory_kind::device, reinterpret_cast<std::uintptr_t>(&byte), 1}, noting{got});
        in.run_until([&] { return got->done(); });
        CHECK(rx.why().operation == "read from");
        CHECK(rx.why().advice.find("memory_span::kind()") != std::string::npos);
    }
    SECTION("of one that came too early")
    {
        auto const first = make_completion();
        rx.async_receive(noting{first});
        receive(in, rx);
        CHECK(rx.why().advice.find("cancel it") != std::string::npos);
    }
    SECTION("of a connect, and no longer after one that succeeds")
    {
        rx.close();
        auto const nobody = nobody_there(in);
        for (auto const& there : {nobody, in.acceptor.local_endpoint()}) {
            auto const got = make_completion();
            rx.async_connect(there, noting{got});
            in.run_until([&] { return got->done(); });
            CHECK(rx.why().operation == (got->code ? "connect" : ""));
            auto const text = describe(got->code, rx.why());
            CHECK((!got->code || text.find(std::to_string(nobody.port())) != std::string::npos));
        }
    }
    SECTION("of a function that throws")
    {
        rx.close();
        try {
            rx.set_option(tcp::no_delay{true});
            FAIL("set");
        } catch (system_error const& failure) {
            CHECK(failure.why().operation == "set option of");
            CHECK(failure.why() == rx.why());
        }
    }
}

TEST_CASE("the first endpoint that answers is connected to")
{
    world in{any_transport(), {.max_flows = 1}};
    receiver rx{*in.io, *in.session};
    auto const answers = in.acceptor.local_endpoint();
    std::vector const peers{nobody_there(in), nobody_there(in), answers, nobody_there(in)};
    tcp::endpoint found;
    auto const connect = [&](auto const& to) {
        auto got = make_completion();
        rx.async_connect(to, [&, got](error_code code, tcp::endpoint const& peer) {
            found = peer;
            noting{got}(code);
        });
        CHECK_FALSE(got->done());
        in.run_until([&] { return got->done(); });
        return got->code;
    };
    CHECK_FALSE(connect(peers));
    CHECK(found == answers);
    CHECK(rx.remote_endpoint() == answers);

    CHECK(connect(peers) == error::already_connected);
    CHECK(rx.is_open());
    rx.close();
    CHECK(connect(std::array{peers[0], peers[1]}) == error::connection_refused);
    CHECK_FALSE(rx.is_open());
    CHECK(connect(std::vector<tcp::endpoint>{}) == error::not_found);
    auto const resolved = tcp::resolver::results_type::create(peers.begin(), peers.end(), "host", "service");
    CHECK_FALSE(connect(resolved));
    CHECK(found == answers);
}

TEST_CASE("no further endpoint is tried when the session is full")
{
    auto const kind = any_transport();
    world in{kind, {.max_flows = 1}};
    sender to{in.wires};
    auto const other = in.flow(to);
    receiver rx{*in.io, *in.session};
    auto const got = make_completion();
    std::vector const peers(2, in.acceptor.local_endpoint());
    rx.async_connect(peers, noting{got});
    in.run_until([&] { return got->done(); });
    CHECK(got->code == errc::too_many_flows);
    CHECK(in.session.nic().flows.empty());
}

TEST_CASE("a receiver that goes between two endpoints connects to none")
{
    world in{any_transport()};
    auto const destroy = GENERATE(true, false);
    std::optional<receiver> rx{std::in_place, *in.io, *in.session};
    auto const got = make_completion();
    std::vector const peers{nobody_there(in), in.acceptor.local_endpoint()};
    rx->async_connect(peers, noting{got});
    // The first has refused, and nobody has heard of it yet.
    if (destroy)
        rx.reset();
    else
        rx->close();
    in.run_until([&] { return got->done(); });
    CHECK(got->code == error::operation_aborted);
    in.acceptor.non_blocking(true);
    error_code code;
    static_cast<void>(in.acceptor.accept(code));
    CHECK(code == error::would_block);
}

}  // namespace gpurx::test
