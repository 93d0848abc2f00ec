// SPDX-License-Identifier: Apache-2.0
//
// gpurx::acceptor: setting one up, and what its accepts promise.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/bind_immediate_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/system_executor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <concepts>
#include <gpurx/acceptor.hpp>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "child.hpp"
#include "circumstances.hpp"
#include "completion.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

using with_tuples = asio::as_tuple_t<asio::use_awaitable_t<>>::as_default_on_t<acceptor>;

static_assert(std::same_as<acceptor, basic_acceptor<asio::any_io_executor>>);
static_assert(!std::is_copy_constructible_v<acceptor>);
static_assert(std::is_nothrow_move_constructible_v<acceptor> && std::is_nothrow_move_assignable_v<acceptor>);

using reuse_port = asio::detail::socket_option::boolean<SOL_SOCKET, SO_REUSEPORT>;

tcp::endpoint any_port()
{
    return {asio::ip::address_v4::loopback(), 0};
}

// A world with an acceptor in it, whose two ways to accept are tested in the same words.
class accepting_world {
  public:
    explicit accepting_world(rx_session_options options = {}) : in{any_transport(), std::move(options)} {}

    void make_acceptor(asio::any_io_executor executor) { from.emplace(std::move(executor), *in.session, any_port()); }
    void make_acceptor() { make_acceptor(in.io->get_executor()); }
    // A connection, which accepts wait for.
    sender& call()
    {
        auto& caller = callers_.emplace_back(std::make_unique<sender>(in.wires));
        caller->socket().connect(from->local_endpoint());
        return *caller;
    }
    template <class Token>
    void accept(Token token)
    {
        if (fresh)
            from->async_accept(std::move(token));
        else
            from->async_accept(into, std::move(token));
    }

    world in;
    std::optional<acceptor> from;
    bool const fresh = GENERATE(true, false);  // a receiver made by the accept
    receiver into{*in.io, *in.session};

  private:
    std::vector<std::unique_ptr<sender>> callers_;
};

// How many connections the kernel lets wait, one more apart.
int backlog_of(acceptor const& listener)
{
    tcp_info info{};
    socklen_t size = sizeof info;
    REQUIRE(::getsockopt(listener.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
    return static_cast<int>(info.tcpi_sacked);
}

std::size_t received_bytes(world& in, receiver& rx)
{
    auto const got = receive(in, rx);
    CHECK_FALSE(got->code);
    return got->bytes;
}

}  // namespace

TEST_CASE("an acceptor is steered before it listens, and makes receivers of connections")
{
    auto const kind = any_transport();
    world in{kind, {.receive_memory = pages(256)}};
    acceptor from{*in.io, *in.session};
    CHECK_FALSE(from.is_open());
    CHECK(from.native_handle() == -1);
    from.open(tcp::v4());
    from.set_option(asio::socket_base::reuse_address{true});
    asio::socket_base::reuse_address reuse;
    from.get_option(reuse);
    CHECK(reuse.value());
    from.bind(any_port());
    SECTION("by itself")
    {
        from.steer();
        CHECK(in.session.nic().ports.size() == (kind != transport::copy ? 1 : 0));
        from.listen(5);
    }
    SECTION("by listen")
    {
        from.listen();
    }
    CHECK(from.is_open());
    auto const& rules = in.session.nic().ports;
    REQUIRE(rules.size() == (kind != transport::copy ? 1 : 0));
    if (kind != transport::copy)
        CHECK(rules[0].first == from.local_endpoint());

    sender caller{in.wires};
    caller.socket().connect(from.local_endpoint());
    caller.send(100);
    receiver rx{*in.io, *in.session};
    auto const got = make_completion();
    from.async_accept(rx, noting{got});
    CHECK_FALSE(got->done());
    in.run_until([&] { return got->done(); });
    CHECK_FALSE(got->code);
    CHECK(rx.is_open());
    CHECK(rx.remote_endpoint() == caller.socket().local_endpoint());
    int size = 0;
    socklen_t length = sizeof size;
    REQUIRE(::getsockopt(rx.native_handle(), SOL_SOCKET, SO_RCVBUF, &size, &length) == 0);
    CHECK(size / 2 == (*in.session).receive_buffer_size());
    CHECK(received_bytes(in, rx) == 100);
}

TEST_CASE("connections are accepted in any number, over IPv6 as well")
{
    world in{any_transport()};
    acceptor from{*in.io, *in.session, {asio::ip::address_v6::loopback(), 0}};
    std::vector<receiver> flows;
    std::vector<std::unique_ptr<sender>> callers;
    for (int i = 0; i < 3; ++i) {
        auto& caller = *callers.emplace_back(std::make_unique<sender>(in.wires));
        caller.socket().connect(from.local_endpoint());
        from.async_accept([&](error_code code, receiver rx) {
            REQUIRE_FALSE(code);
            flows.push_back(std::move(rx));
        });
    }
    in.run_until([&] { return flows.size() == 3; });
    for (std::size_t i = 0; i < 3; ++i) {
        callers[i]->send(10 * (i + 1));
        CHECK(received_bytes(in, flows[i]) == 10 * (i + 1));
    }
}

TEST_CASE("a receiver may run on another executor than the acceptor that made it")
{
    world in{any_transport()};
    acceptor from{*in.io, *in.session, any_port()};
    sender caller{in.wires};
    caller.socket().connect(from.local_endpoint());
    tracker_executor const other{in.io->get_executor(), 7};
    receiver rx{other, *in.session};
    auto const got = make_completion();
    from.async_accept(rx, noting{got});
    in.run_until([&] { return got->done(); });
    CHECK(rx.get_executor() == other);
    caller.send(10);
    bool there = false;
    rx.async_receive([&](error_code code, rx_buffer const&) {
        CHECK_FALSE(code);
        there = runs_on(7);
    });
    in.run_until([&] { return there; });
}

TEST_CASE("a connection for which there is no place is reset, and the acceptor goes on")
{
    accepting_world at{{.max_flows = 1}};
    at.make_acceptor();
    sender other{at.in.wires};
    std::optional first{at.in.flow(other)};
    auto& refused = at.call();
    auto const got = make_completion();
    at.accept([got](error_code code, auto&&...) { noting{got}(code); });
    at.in.run_until([&] { return got->done(); });
    CHECK(got->code == errc::too_many_flows);
    CHECK(at.from->why().operation == "accept from");
    CHECK(at.from->why().advice.find("max_flows") != std::string::npos);
    CHECK_FALSE(at.into.is_open());
    std::byte byte{};
    error_code code;
    refused.socket().read_some(asio::buffer(&byte, 1), code);
    CHECK(code == error::connection_reset);

    first.reset();
    at.call();
    auto const again = make_completion();
    std::optional<receiver> rx;
    at.from->async_accept([&](error_code ended, receiver made) {
        rx = std::move(made);
        noting{again}(ended);
    });
    at.in.run_until([&] { return again->done(); });
    CHECK_FALSE(again->code);
    CHECK(rx->is_open());
}

TEST_CASE("connections that wait and flows are max_flows together, where both take the session's memory", "[native]")
{
    auto const kind = any_transport();
    world in{kind, {.max_flows = 4}};
    auto const wanted = GENERATE(0, 2, 50);
    acceptor from{*in.io, *in.session};
    from.open(tcp::v4());
    from.bind(any_port());
    from.listen(wanted);
    auto const most = wanted == 0 ? 4 : wanted;
    auto const expected = [&](int free) {
        return kind == transport::copy ? most : std::min(most, std::max(free - 1, 0));
    };
    CHECK(backlog_of(from) == expected(4));
    std::vector<receiver> flows;
    std::vector<std::unique_ptr<sender>> callers;
    auto const accept = [&] {
        callers.push_back(std::make_unique<sender>(in.wires));
        callers.back()->socket().connect(from.local_endpoint());
        auto const got = make_completion();
        from.async_accept([&, got](error_code code, receiver rx) {
            flows.push_back(std::move(rx));
            noting{got}(code);
        });
        in.run_until([&] { return got->done(); });
        REQUIRE_FALSE(got->code);
    };
    for (int free : {3, 2, 1, 0}) {
        accept();
        CHECK(backlog_of(from) == expected(free));
    }
    // As the next accept finds it.
    flows.erase(flows.begin() + 1, flows.end());
    from.async_accept([](error_code, receiver const&) {});
    CHECK(backlog_of(from) == expected(3));
    from.close();
}

TEST_CASE("several acceptors on one port are refused, and the error has advice")
{
    auto const kind = any_transport();
    world in{kind};
    acceptor first{*in.io, *in.session, any_port()};
    try {
        acceptor const second{*in.io, *in.session, first.local_endpoint()};
        FAIL("two on one port");
    } catch (system_error const& failure) {
        CHECK(failure.code() == error::address_in_use);
        CHECK(failure.why().advice.find("one acceptor serves a port") != std::string::npos);
        CHECK(failure.why().object.find(std::to_string(first.local_endpoint().port())) != std::string::npos);
    }
    // The kernel would allow these, and deal the connections out.
    acceptor third{*in.io, *in.session};
    third.open(tcp::v4());
    third.set_option(reuse_port{true});
    third.bind(any_port());
    error_code code;
    third.listen(0, code);
    CHECK(code == error::address_in_use);
    CHECK(third.why().operation == "steer");
    CHECK(third.why().advice.find("one acceptor serves a port") != std::string::npos);
    CHECK_THROWS_AS(third.steer(), system_error);
    CHECK(in.session.nic().ports.size() == (kind != transport::copy ? 1 : 0));
}

TEST_CASE("a rule that the NIC refuses is the error of steer")
{
    world in{nic_transport()};
    in.session.nic().refusal = error_code{ENOSPC, boost::system::system_category()};
    acceptor from{*in.io, *in.session};
    from.open(tcp::v4());
    from.bind(any_port());
    try {
        from.listen();
        FAIL("listens");
    } catch (system_error const& failure) {
        CHECK(failure.code() == error_code(ENOSPC, boost::system::system_category()));
        CHECK(failure.why().kernel_message == "no room");
    }
    // Another try.
    from.listen();
    CHECK(in.session.nic().ports.size() == 1);
}

TEST_CASE("an acceptor can be closed, and opened again")
{
    accepting_world at;
    at.make_acceptor();
    auto const port = at.from->local_endpoint();
    at.from->close();
    at.from->close();
    CHECK_FALSE(at.from->is_open());
    error_code code;
    static_cast<void>(at.from->local_endpoint(code));
    CHECK(code == error::bad_descriptor);
    CHECK_THROWS_AS(at.from->local_endpoint(), system_error);
    CHECK_THROWS_AS(at.from->bind(port), system_error);
    CHECK_THROWS_AS(at.from->listen(), system_error);
    auto const got = make_completion();
    at.accept([got](error_code ended, auto&&...) { noting{got}(ended); });
    CHECK_FALSE(got->done());
    at.in.run_until([&] { return got->done(); });
    CHECK(got->code == error::bad_descriptor);

    at.from->open(tcp::v4());
    at.from->bind(any_port());
    at.from->listen();
    at.call();
    auto const again = make_completion();
    at.accept([again](error_code ended, auto&&...) { noting{again}(ended); });
    at.in.run_until([&] { return again->done(); });
    CHECK_FALSE(again->code);
}

TEST_CASE("a receiver that has a connection, or something to do, takes no other")
{
    world in{any_transport()};
    acceptor from{*in.io, *in.session, any_port()};
    sender caller{in.wires};
    caller.socket().connect(from.local_endpoint());
    sender to{in.wires};
    auto rx = in.flow(to);
    auto const accept = [&](receiver& into) {
        auto got = make_completion();
        from.async_accept(into, noting{got});
        in.settle();
        return got;
    };
    CHECK(accept(rx)->code == error::already_open);
    auto const pending = make_completion();
    rx.async_receive(noting{pending});
    in.settle();
    CHECK(accept(rx)->code == errc::already_running);
    // The connection still waits.
    receiver free{*in.io, *in.session};
    auto const got = accept(free);
    REQUIRE(got->done());
    CHECK_FALSE(got->code);
}

TEST_CASE("a receiver that waits for a connection does nothing else, and may go")
{
    world in{any_transport()};
    acceptor from{*in.io, *in.session, any_port()};
    std::optional<receiver> rx{std::in_place, *in.io, *in.session};
    auto const got = make_completion();
    from.async_accept(*rx, noting{got});
    in.settle();
    auto const other = make_completion();
    rx->async_connect(in.acceptor.local_endpoint(), noting{other});
    in.settle();
    CHECK(other->code == errc::already_running);
    rx.reset();
    sender caller{in.wires};
    caller.socket().connect(from.local_endpoint());
    in.run_until([&] { return got->done(); });
    CHECK(got->code == error::operation_aborted);
    // Its connection is the next one's.
    receiver next{*in.io, *in.session};
    auto const again = make_completion();
    from.async_accept(next, noting{again});
    in.run_until([&] { return again->done(); });
    CHECK_FALSE(again->code);
    CHECK(next.remote_endpoint() == caller.socket().local_endpoint());
}

TEST_CASE("an accept's handler runs on its token's executor, never inside the initiating function")
{
    accepting_world at;
    auto const ready_at_once = GENERATE(true, false);
    at.make_acceptor(tracker_executor{at.in.io->get_executor(), receiver_executor});
    if (ready_at_once)
        at.call();
    auto const own = GENERATE(true, false);
    tracker_executor const of_token{at.in.io->get_executor(), token_executor};
    circumstances seen;
    {
        initiation_scope const scope;
        if (own)
            at.accept(asio::bind_executor(of_token, note(seen)));
        else
            at.accept(note(seen));
    }
    CHECK(seen.calls == 0);
    if (!ready_at_once) {
        at.in.settle();
        CHECK(seen.calls == 0);
        at.call();
    }
    at.in.run_until([&] { return seen.calls > 0; });
    at.in.settle();
    CHECK(seen.calls == 1);
    CHECK_FALSE(seen.code);
    CHECK(seen.on_token_executor == own);
    CHECK(seen.on_receiver_executor == !own);
    CHECK_FALSE(seen.inside_initiation);
}

TEST_CASE("an accept goes through the immediate executor if a connection waits, and only then")
{
    accepting_world at;
    auto const ready_at_once = GENERATE(true, false);
    at.make_acceptor();
    if (ready_at_once)
        at.call();
    tracker_executor const immediate{asio::system_executor{}, token_executor};
    circumstances seen;
    {
        initiation_scope const scope;
        at.accept(asio::bind_immediate_executor(immediate, note(seen)));
    }
    CHECK(seen.calls == (ready_at_once ? 1 : 0));
    at.in.settle();
    if (!ready_at_once)
        at.call();
    at.in.run_until([&] { return seen.calls > 0; });
    CHECK(seen.on_token_executor == ready_at_once);
}

TEST_CASE("an accept's memory comes from the handler's allocator and is back before the handler runs")
{
    accepting_world at;
    auto const ready_at_once = GENERATE(true, false);
    at.make_acceptor();
    if (ready_at_once)
        at.call();
    allocation_count memory;
    circumstances seen;
    at.accept(asio::bind_allocator(counting_allocator<void>{memory}, note(seen, &memory)));
    CHECK(memory.alive > 0);
    if (!ready_at_once) {
        at.in.settle();
        at.call();
    }
    at.in.run_until([&] { return seen.calls > 0; });
    CHECK(seen.memory_alive == 0);
    CHECK(memory.alive == 0);
}

TEST_CASE("a cancelled accept takes no connection")
{
    accepting_world at;
    at.make_acceptor();
    auto const how = GENERATE(0, 1, 2, 3, 4, 5);
    asio::cancellation_signal signal;
    circumstances seen;
    at.accept(asio::bind_cancellation_slot(signal.slot(), note(seen)));
    at.in.settle();
    REQUIRE(seen.calls == 0);
    {
        initiation_scope const scope;
        switch (how) {
            case 0:
                signal.emit(asio::cancellation_type::total);
                break;
            case 1:
                signal.emit(asio::cancellation_type::partial);
                break;
            case 2:
                signal.emit(asio::cancellation_type::terminal);
                break;
            case 3:
                at.from->cancel();
                break;
            case 4:
                at.from->close();
                break;
            default:
                at.from.reset();
                break;
        }
    }
    CHECK(seen.calls == 0);
    at.in.settle();
    CHECK(seen.calls == 1);
    CHECK(seen.code == error::operation_aborted);
    CHECK_FALSE(seen.inside_initiation);
    if (how > 3)
        return;
    auto& caller = at.call();
    std::optional<receiver> rx;
    at.from->async_accept([&](error_code code, receiver made) {
        CHECK_FALSE(code);
        rx = std::move(made);
    });
    at.in.run_until([&] { return rx.has_value(); });
    CHECK(rx->remote_endpoint() == caller.socket().local_endpoint());
}

TEST_CASE("cancel() and close() reach accepts whose wait is over, but which have not heard of it")
{
    world in{any_transport()};
    asio::io_context later{1};  // where the steps of accepts run, when told
    acceptor from{*in.io, *in.session, any_port()};
    receiver first{*in.io, *in.session};
    receiver second{*in.io, *in.session};
    auto const one = make_completion();
    auto const other = make_completion();
    auto const cancels = GENERATE(false, true);  // the handler of the first
    from.async_accept(first, asio::bind_executor(later, [&, one](error_code code) {
                          if (cancels)
                              from.cancel();
                          noting{one}(code);
                      }));
    from.async_accept(second, asio::bind_executor(later, noting{other}));
    in.settle();
    sender caller{in.wires};
    caller.socket().connect(from.local_endpoint());
    in.settle();  // one connection makes both ready
    auto const closes = !cancels && GENERATE(false, true);
    if (closes) {
        from.close();
        from.open(tcp::v4());
        from.bind(any_port());
        from.listen();
    } else if (!cancels) {
        from.cancel();
    }
    later.poll();
    in.settle();
    CHECK(one->calls == 1);
    CHECK(one->code == (cancels ? error_code{} : error_code{error::operation_aborted}));
    CHECK(first.is_open() == cancels);
    CHECK(other->calls == 1);
    CHECK(other->code == error::operation_aborted);
    CHECK_FALSE(second.is_open());
    // What begins after that is not cancelled, and no connection is lost.
    sender next{in.wires};
    if (closes || cancels)
        next.socket().connect(from.local_endpoint());
    receiver third{*in.io, *in.session};
    auto const again = make_completion();
    from.async_accept(third, noting{again});
    in.run_until([&] { return again->done(); });
    CHECK_FALSE(again->code);
    auto& expected = closes || cancels ? next : caller;
    CHECK(third.remote_endpoint() == expected.socket().local_endpoint());
}

TEST_CASE("an accept that has succeeded is not cancelled any more")
{
    accepting_world at;
    at.make_acceptor();
    at.call();
    asio::cancellation_signal signal;
    circumstances seen;
    at.accept(asio::bind_cancellation_slot(signal.slot(), note(seen)));
    signal.emit(asio::cancellation_type::all);
    at.from->cancel();
    at.in.settle();
    CHECK(seen.calls == 1);
    CHECK_FALSE(seen.code);
}

TEST_CASE("acceptor and receiver may be moved while an accept is pending")
{
    accepting_world at;
    at.make_acceptor();
    circumstances seen;
    at.accept(note(seen));
    at.in.settle();
    acceptor other{std::move(*at.from)};
    CHECK_FALSE(at.from->is_open());
    CHECK(other.is_open());
    receiver into{std::move(at.into)};
    at.from->close();
    CHECK(seen.calls == 0);
    sender caller{at.in.wires};
    caller.socket().connect(other.local_endpoint());
    at.in.run_until([&] { return seen.calls > 0; });
    CHECK_FALSE(seen.code);
    CHECK(into.is_open() == !at.fresh);
}

TEST_CASE("an acceptor that was moved from may be asked, assigned to and destroyed")
{
    accepting_world at;
    at.make_acceptor();
    auto owner = std::move(*at.from);
    auto& from = *at.from;
    CHECK_FALSE(from.is_open());
    CHECK(from.get_executor() == at.in.io->get_executor());
    CHECK(from.native_handle() == -1);
    CHECK(from.why() == diagnostics{});
    from.cancel();
    from.close();
    error_code code;
    static_cast<void>(from.local_endpoint(code));
    CHECK(code == error::bad_descriptor);
    asio::socket_base::reuse_address option;
    from.get_option(option, code);
    CHECK(code == error::bad_descriptor);
    from.set_option(option, code);
    CHECK(code == error::bad_descriptor);
    from.open(tcp::v4(), code);
    CHECK(code == error::bad_descriptor);
    CHECK_THROWS_AS(from.listen(), system_error);
    circumstances seen;
    at.accept(note(seen));
    at.in.run_until([&] { return seen.calls > 0; });
    CHECK(seen.code == error::bad_descriptor);
    from = std::move(owner);
    CHECK(from.is_open());
}

TEST_CASE("an io_context that goes destroys a pending accept uncalled")
{
    accepting_world at;
    at.make_acceptor();
    auto const completed_already = GENERATE(true, false);
    if (completed_already)
        at.call();
    auto const alive = std::make_shared<int>();
    circumstances seen;
    at.accept(
        [alive, handler = note(seen)](auto&&... results) { handler(std::forward<decltype(results)>(results)...); });
    if (!completed_already)
        at.in.settle();
    CHECK(alive.use_count() == 2);
    at.from.reset();
    at.into.close();
    {
        auto const last = std::move(at.into);
    }
    at.in.io.reset();
    CHECK(alive.use_count() == 1);
    CHECK(seen.calls == 0);
}

TEST_CASE("a forked child that drops an acceptor changes nothing for its parent", "[fork]")
{
    accepting_world at;
    at.make_acceptor();
    circumstances seen;
    at.accept(note(seen));
    at.in.settle();
    auto const found = in_child([&](child_report& child) {
        auto const listener = at.from->native_handle();
        at.from->cancel();
        at.from->close();
        child.expect(!at.from->is_open(), "it is closed");
        child.expect(::fcntl(listener, F_GETFD) < 0, "its descriptor is closed");
        at.from.reset();
        at.in.io.reset();
    });
    CHECK(found == "");
    at.call();
    at.in.run_until([&] { return seen.calls > 0; });
    CHECK_FALSE(seen.code);
}

TEST_CASE("an acceptor that was made before a fork accepts nothing in the child", "[fork]")
{
    accepting_world at;
    at.make_acceptor();
    auto const found = in_child([&](child_report& child) {
        at.in.io->notify_fork(asio::io_context::fork_child);
        circumstances seen;
        at.accept(note(seen));
        at.in.settle();
        child.expect(seen.code == boost::system::errc::operation_not_supported, "it says so");
    });
    CHECK(found == "");
}

TEST_CASE("the session may be destroyed while an accept is pending")
{
    accepting_world at;
    at.make_acceptor();
    std::optional<receiver> rx;
    at.from->async_accept([&](error_code code, receiver made) {
        CHECK_FALSE(code);
        rx = std::move(made);
    });
    at.in.settle();
    at.in.session.drop();
    at.call().send(10);
    at.in.run_until([&] { return rx.has_value(); });
    CHECK(received_bytes(at.in, *rx) == 10);
}

TEST_CASE("accepts with every kind of completion token")
{
    world in{any_transport()};
    with_tuples from{in.io->get_executor(), *in.session, any_port()};
    std::vector<std::unique_ptr<sender>> callers;
    auto const call = [&] {
        callers.push_back(std::make_unique<sender>(in.wires));
        callers.back()->socket().connect(from.local_endpoint());
    };
    bool finished = false;
    asio::co_spawn(
        *in.io,
        [&]() -> asio::awaitable<void> {
            call();
            auto [code, rx] = co_await from.async_accept();
            CHECK(rx.is_open());
            rx.close();
            call();
            auto const [again] = co_await from.async_accept(rx);
            CHECK_FALSE(again);
            call();
            auto const third = co_await from.async_accept(asio::use_awaitable);
            CHECK(third.is_open());
            finished = true;
        },
        asio::detached);
    in.run_until([&] { return finished; });

    call();
    auto future = from.async_accept(asio::use_future);
    in.settle();
    CHECK(future.get().is_open());

    auto begin = from.async_accept(asio::deferred);
    call();
    in.settle();
    bool accepted = false;
    std::move(begin)([&](error_code code, auto const& rx) {
        CHECK_FALSE(code);
        accepted = rx.is_open();
    });
    in.run_until([&] { return accepted; });
}

}  // namespace gpurx::test
