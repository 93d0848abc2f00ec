// SPDX-License-Identifier: Apache-2.0
//
// fork(): a child may drop what it has inherited, and the parent receives on as if there were none.
#include <fcntl.h>

#include <array>
#include <atomic>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/read.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <memory>
#include <optional>
#include <thread>

#include "child.hpp"
#include "completion.hpp"
#include "world.hpp"

namespace gpurx::test {

namespace {

constexpr auto not_here = boost::system::errc::operation_not_supported;

bool is_open(int fd)
{
    return ::fcntl(fd, F_GETFD) >= 0;
}

// A flow that connects, so that it has a rule; the other end is `to`.
receiver connected(world& in, sender& to)
{
    receiver rx{*in.io, *in.session};
    auto const result = make_completion();
    rx.async_connect(in.acceptor.local_endpoint(), noting{result});
    in.run_until([&] { return result->done(); });
    REQUIRE_FALSE(result->code);
    to.socket() = in.acceptor.accept();
    to.socket().set_option(tcp::no_delay{true});
    return rx;
}

completion_ptr received(world& in, receiver& rx)
{
    auto const result = make_completion();
    rx.async_receive(noting{result});
    in.run_until([&] { return result->done(); });
    REQUIRE_FALSE(result->code);
    return result;
}

// What a program has in hand when it forks: loans, a batch that is half read, and an operation that waits.
struct busy_program {
    explicit busy_program(transport kind) : in{kind, {.lock_up_limit = 1000ms}}
    {
        for (auto& loan : loans) {
            to.send(5000);
            loan = received(in, *rx);
        }
        to.send(5000);
        std::vector<std::byte> part(1000);
        auto const read = make_completion();
        async_read(*rx, host_span{part.data(), part.size()}, noting{read});
        in.run_until([&] { return read->done(); });
        waiting->async_receive(noting{pending});
        in.settle();
        REQUIRE_FALSE(pending->done());
        // The NIC's thread has the session until the job is gone that has just told of its end: a child that is forked
        // before would have that for good.
        if (auto const worker = in.session.state().worker())
            worker->run([] {});
    }

    world in;
    sender to{in.wires};
    sender to_waiting{in.wires};
    std::optional<receiver> rx{connected(in, to)};
    std::optional<receiver> waiting{connected(in, to_waiting)};
    std::array<completion_ptr, 3> loans;
    completion_ptr pending = make_completion();
};

}  // namespace

TEST_CASE("a forked child that drops all it has inherited changes nothing for its parent", "[fork]")
{
    auto const kind = any_transport();
    auto const rules = kind != transport::copy ? 2 : 0;
    busy_program program{kind};
    auto& in = program.in;
    auto const releases = in.kernel.releases().size();
    auto const calls = in.kernel.receive_calls();

    auto const found = in_child([&](child_report& child) {
        auto const socket = program.rx->native_handle();
        program.loans[0]->loan.acquire({});
        program.loans[0]->loan.release_after({});
        program.loans[1]->loan.release();
        program.loans[2].reset();
        program.rx->close();
        program.rx.reset();
        program.waiting.reset();
        in.session.drop();
        in.io.reset();
        child.expect(in.session.ended(), "nothing keeps the session");
        child.expect(!is_open(socket), "the descriptor of a dropped receiver is closed");
        child.expect(kind == transport::copy || in.session.nic().alive, "the NIC is left to the parent");
        child.expect(in.session.nic().rules == rules, "the rules are left to the parent");
        child.expect(in.kernel.releases().size() == releases, "no page was given back");
        child.expect(in.kernel.receive_calls() == calls, "nothing was taken from a socket");
    });
    CHECK(found == "");

    program.to_waiting.send(100);
    in.run_until([&] { return program.pending->done(); });
    CHECK(program.pending->bytes == 100);
    for (auto& loan : program.loans)
        CHECK(is_pattern(loan->loan, static_cast<std::size_t>(&loan - program.loans.data()) * 5000));
    CHECK(received(in, *program.rx)->bytes == 4000);
    program.to.send(7);
    CHECK(received(in, *program.rx)->bytes == 7);
    CHECK(in.session.nic().rules == rules);
}

TEST_CASE("a forked child gets an error for objects of its parent", "[fork]")
{
    auto const kind = any_transport();
    busy_program program{kind};
    auto& in = program.in;
    sender other{in.wires};
    auto accepted = in.connection(other);
    auto const found = in_child([&](child_report& child) {
        asio::io_context io{1};
        auto& session = *in.session;
        child.expect(session.stats().bytes() >= 16000, "counters can be read");
        child.expect(session.explain() == "test", "explain() works");
        child.expect(session.memory().span().size() == pages(2048), "the memory can be asked for");

        error_code code;
        diagnostics why;
        session.steer(in.acceptor, code, why);
        child.expect(code == not_here && !why.advice.empty(), "steer() is refused");

        receiver fresh{io, session};
        auto const connect = make_completion();
        fresh.async_connect(in.acceptor.local_endpoint(), noting{connect});
        io.run();
        child.expect(connect->code == not_here, "async_connect is refused");
        try {
            receiver const adopted{io, session, std::move(accepted)};
            child.expect(false, "adopting is refused");
        } catch (system_error const& failure) {
            child.expect(failure.code() == not_here, "adopting is refused with operation_not_supported");
        }

        child.expect(program.rx->is_open(), "a receiver is open until it is closed");
        auto const receive = make_completion();
        program.rx->async_receive(asio::bind_executor(io.get_executor(), noting{receive}));
        io.restart();
        io.run();
        child.expect(receive->code == not_here, "async_receive is refused");
        std::byte byte{};
        auto const read = make_completion();
        async_read(*program.rx, host_span{&byte, 1}, asio::bind_executor(io.get_executor(), noting{read}));
        io.restart();
        io.run();
        child.expect(read->code == not_here && read->bytes == 0, "async_read is refused");
        program.rx->close();
        child.expect(!program.rx->is_open(), "it can be closed");
    });
    CHECK(found == "");
    CHECK(received(in, *program.rx)->bytes == 4000);
}

TEST_CASE("a forked child can receive with a session of its own", "[fork]")
{
    auto const kind = any_transport();
#ifdef __SANITIZE_THREAD__
    if (kind != transport::copy)
        SKIP("ThreadSanitizer knows no threads in a child of a process with threads");
#endif
    busy_program program{kind};
    auto& in = program.in;
    auto const found = in_child([&](child_report& child) {
        test_session own{kind, in.kernel, {.lock_up_limit = 1000ms}, pages(2048), test_session::first_id + 1};
        if (kind != transport::copy)
            in.kernel.deliver({{.kind = fake_kernel::way::device, .bytes = 10, .dmabuf_id = 8}});
        asio::io_context io{1};
        tcp::acceptor acceptor{io, {asio::ip::address_v4::loopback(), 0}};
        sender to{io};
        to.socket().connect(acceptor.local_endpoint());
        std::optional<receiver> rx{std::in_place, io, *own, acceptor.accept()};
        to.send(10);
        auto const result = make_completion();
        rx->async_receive(noting{result});
        io.run();
        child.expect(!result->code && is_pattern(result->loan, 0), "it receives");
        child.expect(kind != transport::devmem || detail::session_state::find_binding(8) != nullptr,
                     "its binding is known");
        child.expect(detail::session_state::find_binding(test_session::first_id) == nullptr,
                     "the parent's is not its own");
        result->loan.release();
        rx.reset();
        own.drop();
        child.expect(own.ended() && !own.nic().alive, "its NIC is restored");
    });
    CHECK(found == "");
    if (kind == transport::devmem)
        CHECK(detail::session_state::find_binding(test_session::first_id) != nullptr);
}

TEST_CASE("a child finds no lock held by a thread that it does not have", "[fork]")
{
    world in{nic_transport(), {.lock_up_limit = 40ms}};
    sender to{in.wires};
    std::optional rx{connected(in, to)};
    auto const waiting = make_completion();
    rx->async_receive(noting{waiting});
    in.settle();
    std::atomic<bool> stop{false};
    std::thread busy{[&] {
        error_code code;
        while (!stop) {
            static_cast<void>((*in.session).stats());
            static_cast<void>(in.session.state().admit(code));
        }
    }};
    std::string found;
    for (int i = 0; i < 200 && found.empty(); ++i)
        found = in_child([&](child_report& child) {
            static_cast<void>((*in.session).stats());
            static_cast<void>(detail::session_state::find_binding(test_session::first_id));
            rx.reset();
            in.session.drop();
            child.expect(in.session.nic().rules == 1, "the rule is left to the parent");
        });
    stop = true;
    busy.join();
    CHECK(found == "");
}

TEST_CASE("a forked child keeps the bytes of a loan's parts until the last is dropped", "[fork]")
{
    world in{any_transport()};
    sender to{in.wires};
    auto socket = in.connection(to);
    to.send(3000);
    // What was read before is in memory of the process's own.
    std::vector<std::byte> read_before(GENERATE(0U, 3000U));
    asio::read(socket, asio::buffer(read_before));
    std::optional<receiver> rx{std::in_place, in.io->get_executor(), *in.session, std::move(socket),
                               asio::buffer(read_before)};
    auto const of_loan = GENERATE(false, true);
    auto const got = make_completion();
    rx->async_receive_exactly(of_loan ? 3000 : 1000, noting{got});
    in.run_until([&] { return got->done(); });
    REQUIRE(got->bytes == (of_loan ? 3000 : 1000));
    auto part = of_loan ? got->loan.split(1000) : std::move(got->loan);
    CHECK(in_child([&](child_report& report) {
              got->loan.release();
              rx.reset();
              report.expect(is_pattern(part, 0), "the bytes are there");
              auto const front = part.split(10);
              part.release();
              report.expect(is_pattern(front, 0), "the bytes of a part are there");
          }) == "");
}

TEST_CASE("a forked child splits a loan while threads of its parent do", "[fork]")
{
#ifdef __SANITIZE_ADDRESS__
    SKIP("AddressSanitizer's allocator stays locked in a child if another thread of its parent was in it");
#endif
    world in{transport::copy};
    sender to{in.wires};
    auto rx = in.flow(to);
    to.send(300000);
    auto const got = make_completion();
    rx.async_receive_exactly(300000, noting{got});
    in.run_until([&] { return got->done(); });
    auto part = got->loan.split(1000);
    std::jthread const splits{[&](std::stop_token const& stop) {
        while (!stop.stop_requested() && got->loan.size() > 1)
            static_cast<void>(got->loan.split(1));
    }};
    for (int i = 0; i < 20; ++i)
        REQUIRE(in_child([&](child_report&) { static_cast<void>(part.split(10)); }, 10) == "");
}

}  // namespace gpurx::test
