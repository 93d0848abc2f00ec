// SPDX-License-Identifier: Apache-2.0
//
// What async_receive delivers, over both transports.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <random>
#include <vector>

#include "completion.hpp"
#include "flow/receiver_state.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

}  // namespace

TEST_CASE("available data is received at once")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10000);
    auto const got = receive(in, rx);
    REQUIRE_FALSE(got->code);
    CHECK(got->loan.size() == 10000);
    CHECK(is_pattern(got->loan, 0));
    auto const seen = rx.stats();
    CHECK(seen.receive_calls == 1);
    CHECK(seen.waits == 0);
    CHECK(seen.bytes() == 10000);
    CHECK(seen.fragments == got->loan.fragments().size());
}

TEST_CASE("a receive waits for missing data")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const got = make_completion();
    rx.async_receive(noting{got});
    in.settle();
    CHECK_FALSE(got->done());
    to.send(1);
    in.run_until([&] { return got->done(); });
    CHECK_FALSE(got->code);
    CHECK(got->loan.size() == 1);
    CHECK(is_pattern(got->loan, 0));
    CHECK(rx.stats().waits == 1);
    CHECK(rx.stats().receive_calls == 2);
}

TEST_CASE("a receive makes one attempt for each arrival of data")
{
    auto const kind = any_transport();
    world in{kind};
    sender to{in.wires};
    auto rx = in.flow(to);
    std::size_t received = 0;
    for (int i = 0; i < 200; ++i) {
        auto const got = make_completion();
        rx.async_receive(noting{got});
        in.settle();
        REQUIRE_FALSE(got->done());
        to.send(3000);
        in.run_until([&] { return got->done(); });
        REQUIRE(is_pattern(got->loan, received));
        received += got->bytes;
    }
    CHECK(rx.stats().waits >= 200);
    std::uint64_t const waits_between_tries = kind == transport::zcrx ? 256 : 16;
    CHECK(rx.stats().receive_calls < 200 + 200 / waits_between_tries + 5);
}

TEST_CASE("a receive of available data does not wait")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    std::size_t received = 0;
    for (int i = 0; i < 200; ++i) {
        to.send(3000);
        auto const got = receive(in, rx);
        REQUIRE(is_pattern(got->loan, received));
        received += got->bytes;
    }
    CHECK(rx.stats().waits == 0);
    CHECK(rx.stats().receive_calls == 200);
}

TEST_CASE("a stream is delivered in order and whole, in whatever portions")
{
    world in{any_transport(), {.loan_limit = pages(2048)}};
    in.kernel.set_fragment_size(GENERATE(4096U, 1448U, 100U));
    sender to{in.wires};
    auto rx = in.flow(to);
    std::mt19937 random{3};
    std::vector<rx_buffer> kept;
    std::size_t received = 0;
    for (int round = 0; round < 60; ++round) {
        to.send(1 + random() % 20000);
        while (received < to.sent()) {
            auto const got = receive(in, rx);
            REQUIRE_FALSE(got->code);
            REQUIRE(is_pattern(got->loan, received));
            received += got->loan.size();
            if (random() % 3 == 0)
                kept.push_back(std::move(got->loan));
            if (random() % 4 == 0)
                kept.clear();
        }
    }
    CHECK(rx.stats().bytes() == to.sent());
}

TEST_CASE("loans stay intact while others come and go")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    struct kept_loan {
        rx_buffer buffer;
        std::size_t offset;
    };
    std::vector<kept_loan> kept;
    std::mt19937 random{5};
    std::size_t received = 0;
    for (int round = 0; round < 300; ++round) {
        to.send(1 + random() % 9000);
        auto const got = receive(in, rx);
        auto const size = got->loan.size();
        kept.push_back({std::move(got->loan), received});
        received += size;
        if (kept.size() > 8)
            kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(random() % kept.size()));
        for (auto const& [buffer, offset] : kept)
            REQUIRE(is_pattern(buffer, offset));
    }
}

TEST_CASE("the end of the stream is reported to every later receive")
{
    auto const kind = any_transport();
    world in{kind};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(100);
    to.finish();
    CHECK(receive(in, rx)->bytes == 100);
    for (int i = 0; i < 3; ++i) {
        auto const end = receive(in, rx);
        CHECK(end->code == error::eof);
        CHECK(end->loan.empty());
        CHECK(end->loan.fragments().empty());
    }
    // The kernel is not asked again. A ring says it with the last bytes.
    CHECK(rx.stats().receive_calls == (kind == transport::zcrx ? 1 : 2));
    CHECK(rx.is_open());
}

TEST_CASE("a connection that is reset stays reset")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.reset();
    for (int i = 0; i < 2; ++i)
        CHECK(receive(in, rx)->code == error::connection_reset);
}

TEST_CASE("a connection that the watchdog has ended has an error of its own")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const got = make_completion();
    rx.async_receive(noting{got});
    in.settle();
    REQUIRE_FALSE(got->done());
    detail::receiver_access::state(rx)->connection()->place().mark_locked_up();
    ::shutdown(rx.native_handle(), SHUT_RDWR);
    in.run_until([&] { return got->done(); });
    CHECK(got->code == errc::memory_locked_up);
    CHECK(receive(in, rx)->code == errc::memory_locked_up);
}

TEST_CASE("a receiver that is not connected fails with not_connected")
{
    world in{any_transport()};
    receiver rx{*in.io, *in.session};
    CHECK(receive(in, rx)->code == error::not_connected);
    sender to{in.wires};
    auto connected = in.flow(to);
    connected.close();
    CHECK(receive(in, connected)->code == error::not_connected);
    CHECK_FALSE(connected.is_open());
    CHECK(connected.native_handle() == -1);
}

TEST_CASE("one operation at a time: the second is refused and disturbs nothing")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const first = make_completion();
    rx.async_receive(noting{first});
    in.settle();

    auto const second = receive(in, rx);
    CHECK(second->code == errc::already_running);
    auto const third = make_completion();
    std::byte byte{};
    async_read(rx, host_span{byte}, noting{third});
    auto const fourth = make_completion();
    rx.async_connect(in.acceptor.local_endpoint(), noting{fourth});
    auto const fifth = make_completion();
    rx.async_receive(1, noting{fifth});
    auto const sixth = make_completion();
    rx.async_receive_exactly(1, noting{sixth});
    in.settle();
    CHECK(third->code == errc::already_running);
    CHECK(fourth->code == errc::already_running);
    CHECK(fifth->code == errc::already_running);
    CHECK(sixth->code == errc::already_running);
    CHECK_FALSE(first->done());

    to.send(5);
    in.run_until([&] { return first->done(); });
    CHECK(first->bytes == 5);
    to.send(6);
    CHECK(receive(in, rx)->bytes == 6);
}

TEST_CASE("a refused operation does not free the place of the first")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const first = make_completion();
    rx.async_receive(noting{first});
    in.settle();
    CHECK(receive(in, rx)->code == errc::already_running);
    CHECK(receive(in, rx)->code == errc::already_running);
    to.send(1);
    in.run_until([&] { return first->done(); });
}

TEST_CASE("signals are survived")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(100);
    in.kernel.fail_receive(EINTR, 3);
    auto const got = receive(in, rx);
    CHECK(got->bytes == 100);
    CHECK(rx.stats().receive_calls == 4);
}

TEST_CASE("an error of the kernel ends the stream and is reported unchanged")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(100);
    in.kernel.fail_receive(EIO);
    CHECK(receive(in, rx)->code == error_code(EIO, boost::system::system_category()));
    CHECK(receive(in, rx)->code == error_code(EIO, boost::system::system_category()));
}

}  // namespace gpurx::test
