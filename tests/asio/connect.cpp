// SPDX-License-Identifier: Apache-2.0
//
// How a receiver comes by its connection: async_connect, and adopting an accepted socket.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <memory>
#include <optional>
#include <vector>

#include "base/syscalls.hpp"
#include "completion.hpp"
#include "descriptors.hpp"
#include "tcp_backlog.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

error_code connect(world& in, receiver& rx, tcp::endpoint const& peer)
{
    auto const result = make_completion();
    rx.async_connect(peer, noting{result});
    in.run_until([&] { return result->done(); });
    return result->code;
}

int receive_buffer(int socket)
{
    int size = 0;
    socklen_t length = sizeof size;
    REQUIRE(::getsockopt(socket, SOL_SOCKET, SO_RCVBUF, &size, &length) == 0);
    return size / 2;  // the kernel doubles what it is told
}

// While one exists, so many descriptors can be opened and no more.
class few_descriptors {
  public:
    explicit few_descriptors(int left)
    {
#ifdef __SANITIZE_ADDRESS__
        // It opens a pipe to see whether an object can be read, and takes every object for a broken one if it cannot.
        SKIP("UBSan's check of dynamic types, part of this build, needs descriptors itself");
#endif
        REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
        rlimit low = before_;
        low.rlim_cur = 256;
        REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
        for (;;) {
            detail::unique_fd filler{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
            if (!filler)
                break;
            fillers_.push_back(std::move(filler));
        }
        fillers_.resize(fillers_.size() - static_cast<std::size_t>(left));
    }
    few_descriptors(few_descriptors const&) = delete;
    few_descriptors& operator=(few_descriptors const&) = delete;
    ~few_descriptors()
    {
        ::setrlimit(RLIMIT_NOFILE, &before_);
    }

  private:
    rlimit before_{};
    std::vector<detail::unique_fd> fillers_;
};

}  // namespace

TEST_CASE("a connection is steered before it is made, and sized")
{
    auto const kind = any_transport();
    world in{kind, {.receive_memory = pages(256)}};
    receiver rx{*in.io, *in.session};
    CHECK_FALSE(rx.is_open());
    CHECK(rx.native_handle() == -1);
    CHECK_THROWS_AS(rx.local_endpoint(), system_error);
    CHECK_THROWS_AS(rx.remote_endpoint(), system_error);
    REQUIRE_FALSE(connect(in, rx, in.acceptor.local_endpoint()));
    CHECK(rx.is_open());
    CHECK(rx.remote_endpoint() == in.acceptor.local_endpoint());
    auto const& rules = in.session.nic().flows;
    if (kind != transport::copy) {
        REQUIRE(rules.size() == 1);
        CHECK(rules[0].first == rx.local_endpoint());
        CHECK(rules[0].second == rx.remote_endpoint());
        CHECK(in.session.nic().rules == 1);
    } else {
        CHECK(rules.empty());
    }
    auto const wanted = (*in.session).receive_buffer_size();
    CHECK(wanted > 0);
    CHECK(receive_buffer(rx.native_handle()) == wanted);
    rx.close();
    in.session.settle_nic();
    CHECK(in.session.nic().rules == 0);
}

TEST_CASE("IPv6 works the same")
{
    world in{any_transport()};
    tcp::acceptor listener{in.wires, {asio::ip::address_v6::loopback(), 0}};
    receiver rx{*in.io, *in.session};
    REQUIRE_FALSE(connect(in, rx, listener.local_endpoint()));
    CHECK(rx.local_endpoint().address().is_v6());
    auto peer = listener.accept();
    asio::write(peer, asio::buffer(pattern(0, 5)));
    CHECK(receive(in, rx)->bytes == 5);
    if (!in.session.nic().flows.empty())
        CHECK(in.session.nic().flows[0].first == rx.local_endpoint());
}

TEST_CASE("a connect that fails leaves the receiver as it was")
{
    world in{any_transport(), {.max_flows = 1}};
    receiver rx{*in.io, *in.session};
    CHECK(connect(in, rx, nobody_there(in)) == error::connection_refused);
    CHECK_FALSE(rx.is_open());
    in.session.settle_nic();
    CHECK(in.session.nic().rules == 0);
    // Its place among max_flows is free again, and another peer may be tried.
    REQUIRE_FALSE(connect(in, rx, in.acceptor.local_endpoint()));
    CHECK(connect(in, rx, in.acceptor.local_endpoint()) == error::already_connected);
    CHECK(rx.is_open());
}

TEST_CASE("a rule that the NIC refuses is the error of the connect")
{
    world in{nic_transport()};
    in.session.nic().refusal = error_code{ENOSPC, boost::system::system_category()};
    receiver rx{*in.io, *in.session};
    CHECK(connect(in, rx, in.acceptor.local_endpoint()) == error_code(ENOSPC, boost::system::system_category()));
    CHECK_FALSE(rx.is_open());
    REQUIRE_FALSE(connect(in, rx, in.acceptor.local_endpoint()));
}

TEST_CASE("a connect for which descriptors run out fails, and a later one works")
{
    auto const kind = any_transport();
    world in{kind, {.max_flows = 1}};
    receiver rx{*in.io, *in.session};
    auto const before = open_descriptors();
    error_code code;
    int left = 0;
    do {
        {
            few_descriptors const few{left++};
            code = connect(in, rx, in.acceptor.local_endpoint());
        }
        CAPTURE(left);
        if (code) {
            CHECK(code == error::no_descriptors);
            CHECK_FALSE(rx.is_open());
            in.session.settle_nic();
            // Of what was there, a session that ended before may close some meanwhile.
            CHECK(std::ranges::includes(before, open_descriptors()));
            CHECK(in.session.nic().rules == 0);
        }
    } while (code && left < 20);
    CHECK_FALSE(code);
    CHECK(left > 2);
    CHECK(rx.is_open());
}

TEST_CASE("a socket for which descriptors run out is not adopted, and the next one is")
{
    world in{any_transport(), {.max_flows = 1}};
    receiver const first{*in.io, *in.session};  // makes what Asio needs
    bool adopted = false;
    for (int left = 0; !adopted && left < 20; ++left) {
        CAPTURE(left);
        sender to{in.wires};
        auto accepted = in.connection(to);
        auto before = open_descriptors();
        before.erase(accepted.native_handle());
        try {
            few_descriptors const few{left};
            receiver const rx{*in.io, *in.session, std::move(accepted)};
            adopted = true;
        } catch (system_error const& failure) {
            CHECK(failure.code() == error::no_descriptors);
            CHECK(failure.why().advice.find("ulimit -n") != std::string::npos);
        }
        CHECK(std::ranges::includes(before, open_descriptors()));  // it is closed in any case
    }
    CHECK(adopted);
}

TEST_CASE("why a connection was not made can be had")
{
    auto const kind = any_transport();
    world in{kind, {.max_flows = 1}};
    receiver rx{*in.io, *in.session};
    auto const why = [&] { return rx.why(); };
    CHECK(why() == diagnostics{});
    auto const nobody = nobody_there(in);
    CHECK(connect(in, rx, nobody) == error::connection_refused);
    CHECK(why().operation == "connect");
    CHECK(why().object.find("127.0.0.1:") == 0);
    CHECK(why().object.find(" to 127.0.0.1:" + std::to_string(nobody.port())) != std::string::npos);

    if (kind != transport::copy) {
        in.session.nic().refusal = error_code{EEXIST, boost::system::system_category()};
        CHECK(connect(in, rx, in.acceptor.local_endpoint()) == error_code(EEXIST, boost::system::system_category()));
        CHECK(why().operation == "add rule");
        CHECK(why().kernel_message == "no room");
        CHECK(why().advice == "make some");
        CHECK(why().object.find("fake0 (127.0.0.1:") == 0);
        CHECK(why().object.find(" to 127.0.0.1:" + std::to_string(in.acceptor.local_endpoint().port())) !=
              std::string::npos);
    }

    sender to{in.wires};
    {
        auto const other = in.flow(to);
        CHECK(connect(in, rx, nobody) == errc::too_many_flows);
        CHECK(why().operation == "connect");
        CHECK(why().object == "127.0.0.1:" + std::to_string(nobody.port()));
        CHECK(why().advice.find("max_flows") != std::string::npos);
    }
    CHECK_FALSE(connect(in, rx, in.acceptor.local_endpoint()));
    CHECK(why() == diagnostics{});
    CHECK(connect(in, rx, nobody) == error::already_connected);
    CHECK(why().operation == "connect");
    rx.close();

    error_code code;
    rx.assign(tcp::socket{in.wires, tcp::v4()}, code);
    CHECK(code == error::not_connected);
    CHECK(why().operation == "adopt");
}

// A connect that waits for the NIC, which is held until let_go().
struct held_connect {
    held_connect()
    {
        in.session.nic().hold();
        rx->async_connect(in.acceptor.local_endpoint(), asio::bind_cancellation_slot(signal.slot(), noting{result}));
        in.session.nic().wait_until_busy();
    }
    // Runs handlers until the connect has ended; the NIC stays held.
    void end()
    {
        in.run_until([&] { return result->done(); });
        CHECK(result->calls == 1);
        CHECK(result->code == error::operation_aborted);
    }
    // The rule that was being made is removed again.
    void check_gone()
    {
        in.session.nic().let_go();
        in.session.settle_nic();
        in.session.settle_nic();
        CHECK(in.session.nic().flows.size() == 1);
        CHECK(in.session.nic().rules == 0);
    }

    world in{nic_transport(), {.max_flows = 1}};
    std::optional<receiver> rx{std::in_place, *in.io, *in.session};
    asio::cancellation_signal signal;
    completion_ptr result = make_completion();
};

TEST_CASE("no io thread waits for the NIC while it makes a rule")
{
    held_connect at;
    bool ran = false;
    asio::post(*at.in.io, [&] { ran = true; });
    at.in.settle();
    CHECK(ran);
    CHECK_FALSE(at.result->done());
    at.in.session.nic().let_go();
    at.in.run_until([&] { return at.result->done(); });
    CHECK_FALSE(at.result->code);
    CHECK(at.in.session.nic().rules == 1);
}

TEST_CASE("a connect that waits for the NIC can be cancelled, and nothing of it is left")
{
    held_connect at;
    SECTION("cancelled")
    {
        at.signal.emit(GENERATE(asio::cancellation_type::terminal, asio::cancellation_type::partial));
        at.end();
        CHECK_FALSE(at.rx->is_open());
    }
    SECTION("cancelled with all that is pending")
    {
        at.rx->cancel();
        at.end();
        CHECK_FALSE(at.rx->is_open());
    }
    SECTION("closed")
    {
        at.rx->close();
        at.end();
    }
    SECTION("destroyed")
    {
        at.rx.reset();
        at.end();
    }
    SECTION("the io_context is gone")
    {
        at.rx.reset();
        at.in.io.reset();
        CHECK_FALSE(at.result->done());
        at.in.io.emplace(1);
    }
    // Its place among max_flows is free, and the next one waits its turn.
    receiver next{*at.in.io, *at.in.session};
    auto const connected = make_completion();
    next.async_connect(at.in.acceptor.local_endpoint(), noting{connected});
    at.in.settle();
    CHECK_FALSE(connected->done());
    next.close();
    at.check_gone();
}

TEST_CASE("a connect that is cancelled when its rule is there is aborted, and the rule removed")
{
    held_connect at;
    at.in.session.nic().let_go();
    at.in.session.settle_nic();
    CHECK(at.in.session.nic().rules == 1);
    SECTION("through its slot")
    {
        at.signal.emit(asio::cancellation_type::terminal);
    }
    SECTION("through the receiver")
    {
        at.rx->cancel();
    }
    at.end();
    at.check_gone();
}

TEST_CASE("cancel() reaches an operation whose wait is over, but which has not heard of it")
{
    world in{any_transport()};
    asio::io_context later{1};  // where the steps of operations run, when told
    SECTION("a connect that has its rule")
    {
        in.session.nic().hold();
        receiver rx{*in.io, *in.session};
        auto const result = make_completion();
        rx.async_connect(in.acceptor.local_endpoint(), asio::bind_executor(later, noting{result}));
        in.session.nic().let_go();
        in.session.settle_nic();
        in.settle();
        rx.cancel();
        later.poll();
        // Without a rule to make, it is the connection that stands: a success, which is not taken back.
        auto const made_rule = !in.session.nic().flows.empty();
        CHECK(result->code == (made_rule ? error_code{error::operation_aborted} : error_code{}));
        CHECK(rx.is_open() == !made_rule);
    }
    SECTION("a receive: nothing is consumed")
    {
        sender to{in.wires};
        auto rx = in.flow(to);
        auto const result = make_completion();
        rx.async_receive(asio::bind_executor(later, noting{result}));
        in.settle();
        to.send(10);
        in.settle();
        rx.cancel();
        later.poll();
        CHECK(result->code == error::operation_aborted);
        CHECK(rx.available() == 10);
        CHECK(receive(in, rx)->bytes == 10);
    }
}

TEST_CASE("cancel() ends a connect to one of several between two attempts")
{
    auto const kind = any_transport();
    world in{kind};
    in.acceptor.non_blocking(true);
    asio::io_context later{1};  // where the steps of the connect run, when told
    auto const step = [&] {
        in.session.settle_nic();
        in.settle();
        later.restart();
        later.poll();
    };
    receiver rx{*in.io, *in.session};
    auto const nobody = nobody_there(in);
    std::vector<tcp::endpoint> const peers{nobody, in.acceptor.local_endpoint()};
    asio::cancellation_signal signal;
    auto const result = make_completion();
    rx.async_connect(peers, asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(later, noting{result})));
    if (kind != transport::copy)
        step();  // a rule comes first
    in.settle();
    REQUIRE_FALSE(result->done());
    // The first has refused, and the operation has not heard of it.
    SECTION("through the receiver")
    {
        rx.cancel();
    }
    SECTION("through its slot")
    {
        signal.emit(asio::cancellation_type::partial);
    }
    for (int i = 0; i < 4; ++i)
        step();
    CHECK(result->calls == 1);
    CHECK(result->code == error::operation_aborted);
    CHECK_FALSE(rx.is_open());
    CHECK(in.session.nic().flows.size() == (kind != transport::copy ? 1 : 0));
    error_code code;
    static_cast<void>(in.acceptor.accept(code));
    CHECK(code == error::would_block);
    // What begins after that is not cancelled.
    CHECK(connect(in, rx, nobody) == error::connection_refused);
    CHECK_FALSE(connect(in, rx, in.acceptor.local_endpoint()));
}

TEST_CASE("the end of a flow does not wait for the NIC")
{
    world in{nic_transport()};
    receiver rx{*in.io, *in.session};
    REQUIRE_FALSE(connect(in, rx, in.acceptor.local_endpoint()));
    in.session.nic().hold();
    rx.close();
    CHECK(in.session.nic().rules == 1);
    in.session.nic().let_go();
    in.session.settle_nic();
    CHECK(in.session.nic().rules == 0);
}

TEST_CASE("a session has max_flows places")
{
    world in{any_transport(), {.max_flows = 2}};
    sender a{in.wires};
    sender b{in.wires};
    std::optional first{in.flow(a)};
    auto second = in.flow(b);

    receiver third{*in.io, *in.session};
    CHECK(connect(in, third, in.acceptor.local_endpoint()) == errc::too_many_flows);
    sender c{in.wires};
    auto accepted = in.connection(c);
    try {
        receiver const refused{*in.io, *in.session, std::move(accepted)};
        FAIL("adopted");
    } catch (system_error const& failure) {
        CHECK(failure.code() == errc::too_many_flows);
        CHECK(failure.why().advice.find("max_flows") != std::string::npos);
    }
    // The socket that was refused is closed.
    std::byte byte{};
    error_code code;
    c.socket().read_some(asio::buffer(&byte, 1), code);
    CHECK(code);

    // A place is free once the last loan of its flow is gone.
    a.send(10);
    auto const got = make_completion();
    first->async_receive(noting{got});
    in.run_until([&] { return got->done(); });
    first.reset();
    CHECK(connect(in, third, in.acceptor.local_endpoint()) == errc::too_many_flows);
    got->loan.release();
    CHECK_FALSE(connect(in, third, in.acceptor.local_endpoint()));
}

TEST_CASE("a closed receiver can connect again")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10);
    CHECK(receive(in, rx)->bytes == 10);
    rx.close();
    rx.close();
    CHECK(rx.stats().bytes() == 10);  // of the connection that was
    REQUIRE_FALSE(connect(in, rx, in.acceptor.local_endpoint()));
    CHECK(rx.stats().bytes() == 0);
    auto peer = in.acceptor.accept();
    asio::write(peer, asio::buffer(pattern(0, 7)));
    CHECK(receive(in, rx)->bytes == 7);
}

TEST_CASE("the end of one connection is not that of the next")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.finish();
    CHECK(receive(in, rx)->bytes == 0);
    rx.close();
    REQUIRE_FALSE(connect(in, rx, in.acceptor.local_endpoint()));
    auto peer = in.acceptor.accept();
    asio::write(peer, asio::buffer(pattern(0, 7)));
    CHECK(receive(in, rx)->bytes == 7);
}

TEST_CASE("a connection is ended when it is closed, while a loan keeps its socket")
{
    world in{any_transport()};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(10);
    auto const got = make_completion();
    rx.async_receive(noting{got});
    in.run_until([&] { return got->done(); });
    rx.close();
    std::byte byte{};
    error_code code;
    to.socket().read_some(asio::buffer(&byte, 1), code);
    CHECK(code == error::eof);
    CHECK(is_pattern(got->loan, 0));
}

TEST_CASE("an adopted connection works on another io_context than its acceptor's")
{
    world in{any_transport(), {.receive_memory = pages(256)}};
    sender to{in.wires};
    auto accepted = in.connection(to);
    to.send(100);
    receiver rx{*in.io, *in.session, std::move(accepted)};
    CHECK(rx.is_open());
    CHECK(rx.remote_endpoint() == to.socket().local_endpoint());
    CHECK(receive(in, rx)->bytes == 100);
    CHECK(receive_buffer(rx.native_handle()) == (*in.session).receive_buffer_size());
}

TEST_CASE("a socket that is not connected cannot be adopted")
{
    world in{any_transport(), {.max_flows = 1}};
    CHECK_THROWS_AS((receiver{*in.io, *in.session, tcp::socket{in.wires}}), system_error);
    CHECK_THROWS_AS((receiver{*in.io, *in.session, tcp::socket{in.wires, tcp::v4()}}), system_error);
    sender to{in.wires};
    auto const rx = in.flow(to);  // neither has kept a place
}

TEST_CASE("receiving before the connection stands")
{
    world in{any_transport()};
    full_backlog busy{in.wires};
    receiver rx{*in.io, *in.session};
    auto const connected = make_completion();
    rx.async_connect(busy.endpoint(), noting{connected});
    in.settle();
    auto const early = make_completion();
    rx.async_receive(noting{early});
    in.settle();
    CHECK(early->code == errc::already_running);
    CHECK_FALSE(connected->done());
}

TEST_CASE("the session's counters include flows that are gone")
{
    world in{any_transport()};
    sender a{in.wires};
    sender b{in.wires};
    {
        auto rx = in.flow(a);
        a.send(10);
        CHECK(receive(in, rx)->bytes == 10);
    }
    auto rx = in.flow(b);
    b.send(5);
    CHECK(receive(in, rx)->bytes == 5);
    CHECK((*in.session).stats().bytes() == 15);
    CHECK(rx.stats().bytes() == 5);
}

}  // namespace gpurx::test
