// SPDX-License-Identifier: Apache-2.0
//
// What every asynchronous operation of the library promises, whatever it does: which executor, when, with whose memory,
// and what happens to it when its surroundings go.
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/bind_immediate_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/system_executor.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <functional>
#include <optional>

#include "circumstances.hpp"
#include "completion.hpp"
#include "operation.hpp"
#include "stale_events.hpp"
#include "tracker_executor.hpp"

namespace gpurx::test {

namespace {

namespace error = asio::error;

operation any_operation()
{
    return GENERATE(from_range(all_operations));
}

// One that takes bytes off the stream.
operation any_stream_operation()
{
    return GENERATE(from_range(stream_operations));
}

template <class Token>
void initiate(operation_world& at, receiver& rx, Token token)
{
    initiation_scope const scope;
    at.start(rx, std::move(token));
}

// What an operation with a bound was not to take is there for the next one.
void check_rest(operation_world& at, receiver& rx)
{
    if (at.rest() == 0)
        return;
    auto const got = receive(at.in, rx);
    CHECK(got->bytes == at.rest());
    CHECK(is_pattern(got->loan, at.first() + operation_world::size));
}

}  // namespace

TEST_CASE("a handler runs on its token's executor, never inside the initiating function")
{
    auto const which = any_operation();
    auto const ready_at_once = GENERATE(true, false);
    operation_world at{any_transport(), which};
    INFO(which << (ready_at_once ? ", at once" : ", after a wait"));
    tracker_executor const of_token{at.in.io->get_executor(), token_executor};
    tracker_executor const of_receiver{at.in.io->get_executor(), receiver_executor};
    if (!ready_at_once)
        at.make_pending();
    auto rx = at.make_receiver(of_receiver);
    if (ready_at_once)
        at.make_ready();
    circumstances seen;
    initiate(at, rx, asio::bind_executor(of_token, note(seen)));
    CHECK(seen.calls == 0);
    if (!ready_at_once) {
        at.in.settle();
        CHECK(seen.calls == 0);
        at.make_ready();
    }
    at.in.run_until([&] { return seen.calls > 0; });
    at.in.settle();
    CHECK(seen.calls == 1);
    CHECK(seen.on_token_executor);
    CHECK_FALSE(seen.inside_initiation);
    check_rest(at, rx);
}

TEST_CASE("a spurious event of the reactor completes no operation")
{
    auto const which = any_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    at.make_pending();
    auto rx = at.make_receiver();
    circumstances seen;
    // A connect waits for its rule first, and then for the answer.
    auto const steers = is_connect(which) && (*at.in.session).transport() != transport::copy;
    if (steers)
        at.in.session.nic().hold();
    stale_events const events{*at.in.io, [&] { at.start(rx, note(seen)); }};
    REQUIRE(events.are_ready());
    at.in.settle();
    CHECK(seen.calls == 0);
    if (steers)
        at.in.session.nic().let_go();
    at.in.session.settle_nic();
    at.in.settle();
    CHECK(seen.calls == 0);
    at.make_ready();
    at.in.run_until([&] { return seen.calls > 0; });
    CHECK_FALSE(seen.code);
    check_rest(at, rx);
}

TEST_CASE("without an executor of its own a handler runs on the receiver's")
{
    auto const which = any_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    auto rx = at.make_receiver(tracker_executor{at.in.io->get_executor(), receiver_executor});
    at.make_ready();
    circumstances seen;
    initiate(at, rx, note(seen));
    CHECK(seen.calls == 0);
    at.in.run_until([&] { return seen.calls > 0; });
    CHECK(seen.on_receiver_executor);
    CHECK_FALSE(seen.inside_initiation);
    check_rest(at, rx);
}

// Such a handler's executor is of a type that cannot be held without asking the handler.
TEST_CASE("a handler of erased type keeps its executors")
{
    auto const ready_at_once = GENERATE(true, false);
    operation_world at{any_transport(), operation::receive};
    auto rx = at.make_receiver(tracker_executor{at.in.io->get_executor(), receiver_executor});
    if (ready_at_once)
        at.make_ready();
    tracker_executor const of_token{at.in.io->get_executor(), token_executor};
    circumstances seen;
    auto const finish = [&] {
        CHECK(seen.calls == 0);
        at.in.settle();
        if (!ready_at_once)
            at.make_ready();
        at.in.run_until([&] { return seen.calls > 0; });
        CHECK_FALSE(seen.inside_initiation);
    };
    auto const start = [&](asio::any_completion_handler<void(error_code, rx_buffer)> erased) {
        initiation_scope const scope;
        rx.async_receive(std::move(erased));
    };
    SECTION("with one of its own")
    {
        start(asio::bind_executor(of_token, note(seen)));
        finish();
        CHECK(seen.on_token_executor);
    }
    SECTION("without")
    {
        start(note(seen));
        finish();
        CHECK(seen.on_receiver_executor);
    }
    SECTION("with an immediate one")
    {
        start(asio::bind_immediate_executor(asio::system_executor{}, note(seen)));
        CHECK(seen.inside_initiation == ready_at_once);
        at.in.settle();
        if (!ready_at_once)
            at.make_ready();
        at.in.run_until([&] { return seen.calls > 0; });
    }
}

// Only what needs no waiting goes through it: connect never does, unless it is refused.
TEST_CASE("an operation that can finish at once goes through the immediate executor")
{
    auto const which = any_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    auto rx = at.make_receiver();
    at.make_ready();
    if (is_connect(which)) {
        circumstances first;
        initiate(at, rx, note(first));
        at.in.run_until([&] { return first.calls > 0; });
        REQUIRE_FALSE(first.code);
    }
    circumstances seen;
    initiate(at, rx, asio::bind_immediate_executor(asio::system_executor{}, note(seen)));
    CHECK(seen.calls == 1);
    CHECK(seen.inside_initiation);
    check_rest(at, rx);
    CHECK(seen.code == (is_connect(which) ? error_code{error::already_connected} : error_code{}));
}

TEST_CASE("an operation that waited does not go through the immediate executor")
{
    auto const which = any_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    at.make_pending();
    auto rx = at.make_receiver();
    tracker_executor const immediate{asio::system_executor{}, token_executor};
    circumstances seen;
    initiate(at, rx, asio::bind_immediate_executor(immediate, note(seen)));
    CHECK(seen.calls == 0);
    at.in.settle();
    at.make_ready();
    at.in.run_until([&] { return seen.calls > 0; });
    CHECK_FALSE(seen.on_token_executor);
}

TEST_CASE("memory comes from the handler's allocator and is back before the handler runs")
{
    auto const which = any_operation();
    auto const ready_at_once = GENERATE(true, false);
    operation_world at{any_transport(), which};
    INFO(which << (ready_at_once ? ", at once" : ", after a wait"));
    if (!ready_at_once)
        at.make_pending();
    auto rx = at.make_receiver();
    if (ready_at_once)
        at.make_ready();
    allocation_count memory;
    circumstances seen;
    initiate(at, rx, asio::bind_allocator(counting_allocator<void>{memory}, note(seen, &memory)));
    CHECK(memory.alive > 0);
    if (!ready_at_once) {
        at.in.settle();
        at.make_ready();
    }
    at.in.run_until([&] { return seen.calls > 0; });
    CHECK(memory.total > 0);
    CHECK(seen.memory_alive == 0);
    CHECK(memory.alive == 0);
    check_rest(at, rx);
}

TEST_CASE("cancellation ends a pending operation")
{
    auto const which = any_operation();
    auto const type =
        GENERATE(asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total);
    operation_world at{any_transport(), which};
    INFO(which << ", type " << static_cast<int>(type));
    at.make_pending();
    auto rx = at.make_receiver();
    asio::cancellation_signal signal;
    circumstances seen;
    initiate(at, rx, asio::bind_cancellation_slot(signal.slot(), note(seen)));
    at.in.settle();
    REQUIRE(seen.calls == 0);
    {
        initiation_scope const scope;
        signal.emit(type);
    }
    at.in.settle();
    if (is_connect(which) && type == asio::cancellation_type::total) {
        CHECK(seen.calls == 0);  // a connection that has begun has effects: total is not offered
        CHECK(rx.is_open());
        signal.emit(asio::cancellation_type::terminal);
        at.in.settle();
    }
    CHECK(seen.calls == 1);
    CHECK(seen.code == error::operation_aborted);
    CHECK_FALSE(seen.inside_initiation);
    CHECK(rx.is_open() == (!is_connect(which)));
}

TEST_CASE("cancelling again, or after the end, does nothing")
{
    auto const which = any_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    at.make_pending();
    auto rx = at.make_receiver();
    asio::cancellation_signal signal;
    circumstances seen;
    initiate(at, rx, asio::bind_cancellation_slot(signal.slot(), note(seen)));
    at.in.settle();
    signal.emit(asio::cancellation_type::terminal);
    signal.emit(asio::cancellation_type::terminal);
    at.in.settle();
    signal.emit(asio::cancellation_type::terminal);
    at.in.settle();
    CHECK(seen.calls == 1);
}

TEST_CASE("a cancelled operation leaves the stream as it was, and the next one gets all of it")
{
    auto const which = any_stream_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    at.make_pending();
    auto rx = at.make_receiver();
    asio::cancellation_signal signal;
    circumstances seen;
    initiate(at, rx, asio::bind_cancellation_slot(signal.slot(), note(seen)));
    at.in.settle();
    at.to.send(1000);
    signal.emit(asio::cancellation_type::total);
    at.in.settle();
    REQUIRE(seen.code == error::operation_aborted);
    for (auto received = at.first(); received < at.to.sent();) {
        auto const got = receive(at.in, rx);
        REQUIRE_FALSE(got->code);
        CHECK(is_pattern(got->loan, received));
        received += got->bytes;
    }
}

TEST_CASE("a success is never turned into an abort")
{
    auto const which = any_stream_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    auto rx = at.make_receiver();
    at.make_ready();
    asio::cancellation_signal signal;
    circumstances seen;
    initiate(at, rx, asio::bind_cancellation_slot(signal.slot(), note(seen)));
    signal.emit(asio::cancellation_type::all);  // done, but its handler has not run yet
    at.in.settle();
    CHECK(seen.calls == 1);
    CHECK_FALSE(seen.code);
    check_rest(at, rx);
}

TEST_CASE("closing or destroying the receiver ends a pending operation, not inside that call")
{
    auto const which = any_operation();
    auto const destroy = GENERATE(true, false);
    operation_world at{any_transport(), which};
    INFO(which << (destroy ? ", destroyed" : ", closed"));
    at.make_pending();
    std::optional rx{at.make_receiver()};
    circumstances seen;
    initiate(at, *rx, note(seen));
    at.in.settle();
    {
        initiation_scope const scope;
        if (destroy)
            rx.reset();
        else
            rx->close();
    }
    CHECK(seen.calls == 0);
    at.in.settle();
    CHECK(seen.calls == 1);
    CHECK(seen.code == error::operation_aborted);
    CHECK_FALSE(seen.inside_initiation);
}

TEST_CASE("destroying the receiver does not take a success back")
{
    auto const which = any_stream_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    std::optional rx{at.make_receiver()};
    at.make_ready();
    auto const got = make_completion();
    at.start(*rx, noting{got});
    rx.reset();
    at.in.settle();
    REQUIRE(got->calls == 1);
    CHECK_FALSE(got->code);
    CHECK(got->bytes == operation_world::size);
    CHECK(is_pattern(got->loan, at.first()));
}

TEST_CASE("a receiver may be moved while an operation is pending")
{
    auto const which = any_operation();
    auto const assign = GENERATE(true, false);
    operation_world at{any_transport(), which};
    INFO(which << (assign ? ", assigned" : ", constructed"));
    at.make_pending();
    auto rx = at.make_receiver();
    circumstances seen;
    initiate(at, rx, note(seen));
    at.in.settle();
    std::optional<receiver> other;
    if (assign) {
        other.emplace(*at.in.io, *at.in.session);
        *other = std::move(rx);
    } else {
        other.emplace(std::move(rx));
    }
    CHECK_FALSE(rx.is_open());
    CHECK(other->is_open());
    at.in.settle();
    CHECK(seen.calls == 0);
    at.make_ready();
    at.in.run_until([&] { return seen.calls > 0; });
    CHECK_FALSE(seen.code);
    check_rest(at, *other);
}

TEST_CASE("assigning to a receiver closes what it had")
{
    auto const which = any_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    at.make_pending();
    auto rx = at.make_receiver();
    circumstances seen;
    initiate(at, rx, note(seen));
    at.in.settle();
    rx = receiver{*at.in.io, *at.in.session};
    at.in.settle();
    CHECK(seen.calls == 1);
    CHECK(seen.code == error::operation_aborted);
}

TEST_CASE("an io_context that goes destroys a pending handler uncalled")
{
    auto const which = any_operation();
    auto const completed_already = GENERATE(true, false);
    auto const keep_receiver_in_handler = GENERATE(true, false);
    operation_world at{any_transport(), which};
    INFO(which << (completed_already ? ", about to be called" : ", waiting"));
    if (!completed_already)
        at.make_pending();
    auto rx = std::make_shared<receiver>(at.make_receiver());
    if (completed_already)
        at.make_ready();
    auto const alive = std::make_shared<int>();
    circumstances seen;
    // A handler that owns its receiver, as a coroutine does, must not keep itself alive.
    initiate(at, *rx,
             [alive, handler = note(seen), owner = keep_receiver_in_handler ? rx : nullptr](auto&&... results) {
                 handler(std::forward<decltype(results)>(results)...);
             });
    if (!completed_already)
        at.in.settle();
    if (keep_receiver_in_handler)
        rx.reset();
    else
        rx->close();
    rx.reset();
    CHECK(alive.use_count() == 2);
    at.in.io.reset();
    CHECK(alive.use_count() == 1);
    CHECK(seen.calls == 0);
}

TEST_CASE("a pending operation keeps run() from returning")
{
    auto const which = any_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    at.make_pending();
    auto rx = at.make_receiver();
    circumstances seen;
    initiate(at, rx, note(seen));
    at.in.io->run_for(50ms);
    CHECK_FALSE(at.in.io->stopped());
    rx.close();
    at.in.io->run();
    CHECK(seen.calls == 1);
}

TEST_CASE("a pending operation keeps its handler's own execution context from running out of work")
{
    auto const which = any_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    at.make_pending();
    auto rx = at.make_receiver();
    asio::io_context elsewhere{1};
    int calls = 0;
    initiate(at, rx, asio::bind_executor(elsewhere.get_executor(), [&](auto&&...) { ++calls; }));
    at.in.settle();
    elsewhere.poll();
    CHECK_FALSE(elsewhere.stopped());
    rx.close();
    at.in.settle();
    elsewhere.run_for(60s);
    CHECK(calls == 1);
}

TEST_CASE("the session may be destroyed while an operation is pending")
{
    auto const which = any_stream_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    at.make_pending();
    auto rx = at.make_receiver();
    auto const got = make_completion();
    at.start(rx, noting{got});
    at.in.settle();
    at.in.session.drop();
    CHECK_FALSE(at.in.session.ended());
    at.make_ready();
    at.in.run_until([&] { return got->done(); });
    CHECK_FALSE(got->code);
    CHECK(got->bytes == operation_world::size);
    CHECK(is_pattern(got->loan, at.first()));
    rx.close();
    CHECK_FALSE(at.in.session.ended());
    {
        auto const last = std::move(rx);
    }
    CHECK(at.in.session.ended() == got->loan.empty());
    got->loan.release();
    CHECK(at.in.session.ended());
}

TEST_CASE("the next operation may be started from the handler of the last")
{
    auto const which = any_stream_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    auto rx = at.make_receiver();
    int calls = 0;
    std::function<void()> again = [&] {
        at.start(rx, [&](error_code code, auto&&...) {
            REQUIRE_FALSE(code);
            if (++calls < 5)
                again();
        });
        if (calls < 4)
            at.make_ready();
    };
    again();
    at.in.run_until([&] { return calls == 4; });
    at.make_ready();
    at.in.run_until([&] { return calls == 5; });
}

TEST_CASE("an exception from a handler leaves through run()")
{
    auto const which = any_operation();
    operation_world at{any_transport(), which};
    INFO(which);
    auto rx = at.make_receiver();
    at.make_ready();
    struct thrown {};
    at.start(rx, [](error_code, auto&&...) { throw thrown{}; });
    at.in.io->restart();
    CHECK_THROWS_AS(at.in.io->run(), thrown);
    // The receiver is free again.
    circumstances seen;
    std::byte nothing{};
    async_read(rx, host_span{&nothing, 0}, note(seen));
    at.in.settle();
    CHECK(seen.calls == 1);
    CHECK_FALSE(seen.code);
}

}  // namespace gpurx::test
