// SPDX-License-Identifier: Apache-2.0
//
// Sending on a receiver's connection: requests and acknowledgements.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <string>
#include <thread>
#include <vector>

#include "completion.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

// More than both sockets take.
constexpr std::size_t too_much = 64 << 20;

}  // namespace

TEST_CASE("a receiver sends beside what it receives")
{
    world in{any_transport()};
    sender peer{in.wires};
    auto rx = in.flow(peer);
    auto const received = make_completion();
    rx.async_receive(noting{received});
    in.settle();

    auto const sent = make_completion();
    std::string const request = "GET / HTTP/1.1\r\n\r\n";
    asio::async_write(rx, asio::buffer(request), noting{sent});
    CHECK_FALSE(sent->done());  // not inside the initiating function
    in.run_until([&] { return sent->done(); });
    CHECK_FALSE(sent->code);
    CHECK(sent->bytes == request.size());
    std::string arrived(request.size(), '\0');
    asio::read(peer.socket(), asio::buffer(arrived));
    CHECK(arrived == request);

    CHECK_FALSE(received->done());
    peer.send(1000);
    in.run_until([&] { return received->done(); });
    CHECK(received->bytes == 1000);
    CHECK(is_pattern(received->loan, 0));
}

TEST_CASE("a write that the peer does not take waits for it, and loses nothing")
{
    world in{any_transport()};
    sender peer{in.wires};
    auto rx = in.flow(peer);
    auto const message = pattern(0, too_much);
    auto const sent = make_completion();
    asio::async_write(rx, asio::buffer(message), noting{sent});
    in.settle();
    CHECK_FALSE(sent->done());
    std::vector<std::byte> arrived(too_much);
    std::thread reader{[&] { asio::read(peer.socket(), asio::buffer(arrived)); }};
    in.run_until([&] { return sent->done(); });
    reader.join();
    CHECK_FALSE(sent->code);
    CHECK(arrived == message);
}

TEST_CASE("a write of more buffers than one system call takes sends all of them, in order")
{
    world in{any_transport()};
    sender peer{in.wires};
    auto rx = in.flow(peer);
    auto const message = pattern(0, 300);
    std::vector<asio::const_buffer> each;
    for (auto const& byte : message)
        each.emplace_back(&byte, 1);
    auto const sent = make_completion();
    asio::async_write(rx, each, noting{sent});
    in.run_until([&] { return sent->done(); });
    CHECK_FALSE(sent->code);
    CHECK(sent->bytes == message.size());
    std::vector<std::byte> arrived(message.size());
    asio::read(peer.socket(), asio::buffer(arrived));
    CHECK(arrived == message);
}

TEST_CASE("a write ends with operation_aborted when it is cancelled, and when the receiver goes")
{
    world in{any_transport()};
    sender peer{in.wires};
    auto rx = in.flow(peer);
    auto const message = pattern(0, too_much);
    asio::cancellation_signal signal;
    auto const sent = make_completion();
    asio::async_write(rx, asio::buffer(message), asio::bind_cancellation_slot(signal.slot(), noting{sent}));
    in.settle();
    SECTION("cancelled")
    {
        signal.emit(asio::cancellation_type::terminal);
    }
    SECTION("closed")
    {
        rx.close();
    }
    SECTION("destroyed")
    {
        auto const gone = std::move(rx);
    }
    in.run_until([&] { return sent->done(); });
    CHECK(sent->code == asio::error::operation_aborted);
}

TEST_CASE("a receiver that is not connected sends nothing")
{
    world in{any_transport()};
    receiver rx{*in.io, *in.session};
    auto const sent = make_completion();
    rx.async_write_some(asio::buffer("x", 1), noting{sent});
    CHECK_FALSE(sent->done());
    in.run_until([&] { return sent->done(); });
    CHECK(sent->code == asio::error::bad_descriptor);
}

}  // namespace gpurx::test
