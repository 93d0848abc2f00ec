// SPDX-License-Identifier: Apache-2.0
#include "session/watchdog.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <csignal>
#include <thread>

#include "asleep.hpp"
#include "awake_watchdog.hpp"
#include "eventually.hpp"

using namespace std::chrono_literals;
namespace asio = boost::asio;
using asio::ip::tcp;
using gpurx::detail::lock_up_detector;
using gpurx::detail::lock_up_sample;
using gpurx::detail::watchdog;
using gpurx::detail::watchdog_subject;
using gpurx::test::awake_watchdog;
using gpurx::test::eventually;
using gpurx::test::is_asleep;

namespace {

// A session whose state the test sets.
class subject final : public watchdog_subject {
  public:
    std::atomic<bool> waits{false};
    std::atomic<bool> stuck{false};
    std::atomic<int> looks{0};
    std::atomic<int> ended{0};
    std::atomic<int> told{0};
    std::atomic<std::uint64_t> on_loan{0};

    std::optional<lock_up_sample> look() noexcept override
    {
        auto const number = static_cast<std::uint64_t>(++looks);
        if (!waits)
            return std::nullopt;
        lock_up_sample sample;
        sample.at = std::chrono::steady_clock::now();
        sample.pages_on_loan = on_loan;
        sample.bytes_held = 1;
        sample.bytes_delivered = stuck ? 0 : number;
        sample.pool = {.in_flight = 10, .allocation_failures = number};
        return sample;
    }
    void end_a_flow() noexcept override
    {
        waits = false;
        ++ended;
    }
    void tell_starved() noexcept override { ++told; }
};

lock_up_detector detector_for(std::chrono::milliseconds limit)
{
    return {limit, 10, 4096};
}

}  // namespace

TEST_CASE("the watchdog sleeps while no flow waits")
{
    subject watched;
    watchdog dog{watched, 40ms, detector_for(40ms)};
    // Once as ever, and once more as it goes to sleep.
    REQUIRE(eventually([&] { return watched.looks == 2; }));
    awake_watchdog other{40ms};
    REQUIRE(other.looks(10));
    CHECK(watched.looks == 2);
    CHECK(watched.ended == 0);
}

TEST_CASE("a flow that waits wakes the watchdog, which ends it only when it is stuck")
{
    subject watched;
    watchdog dog{watched, 40ms, detector_for(40ms)};
    for (int round = 1; round <= 3; ++round) {
        watched.stuck = false;
        watched.waits = true;
        dog.flow_waits();
        auto const looks = watched.looks.load();
        REQUIRE(eventually([&] { return watched.looks >= looks + 10; }));
        REQUIRE(watched.ended == round - 1);
        watched.stuck = true;
        REQUIRE(eventually([&] { return watched.ended == round; }));
    }
}

TEST_CASE("pages that the program holds are not the flow's end, but told")
{
    subject watched;
    watched.on_loan = 1;
    watched.stuck = true;
    watched.waits = true;
    watchdog dog{watched, 40ms, detector_for(40ms)};
    REQUIRE(eventually([&] { return watched.told == 1; }));
    auto const looks = watched.looks.load();
    REQUIRE(eventually([&] { return watched.looks >= looks + 10; }));
    CHECK(watched.told == 1);
    CHECK(watched.ended == 0);
    watched.on_loan = 0;
    REQUIRE(eventually([&] { return watched.ended == 1; }));
}

TEST_CASE("a limit without end is none that has passed")
{
    subject watched;
    watched.stuck = true;
    watched.waits = true;
    auto const forever = std::chrono::milliseconds::max();
    auto const begin = std::chrono::steady_clock::now();
    {
        watchdog dog{watched, forever, detector_for(forever)};
        REQUIRE(eventually([&] { return watched.looks >= 2; }));
        CHECK(std::chrono::steady_clock::now() - begin >= 2s);  // a second each
    }
    CHECK(watched.ended == 0);  // by the second look either
}

TEST_CASE("the watchdog leaves the program's signals to the program")
{
    // As a program does that waits for SIGTERM in main: blocked there, and nowhere else to be taken.
    sigset_t wanted;
    sigset_t before;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    subject watched;
    watched.waits = true;
    watchdog dog{watched, 40ms, detector_for(40ms)};
    REQUIRE(eventually([&] { return watched.looks >= 1; }));
    REQUIRE(::pthread_sigmask(SIG_BLOCK, &wanted, &before) == 0);
    static std::atomic<int> taken_elsewhere;
    taken_elsewhere = 0;
    struct sigaction handler {};
    struct sigaction former {};
    handler.sa_handler = [](int) { ++taken_elsewhere; };
    REQUIRE(::sigaction(SIGUSR1, &handler, &former) == 0);
    REQUIRE(::kill(::getpid(), SIGUSR1) == 0);
    // A thread that the signal is for takes it before it goes on: the second look from here began later.
    auto const looks = watched.looks.load();
    REQUIRE(eventually([&] { return watched.looks >= looks + 2; }));
    timespec const at_once{.tv_sec = 0, .tv_nsec = 0};
    CHECK(::sigtimedwait(&wanted, nullptr, &at_once) == SIGUSR1);
    CHECK(taken_elsewhere == 0);
    ::sigaction(SIGUSR1, &former, nullptr);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_CASE("a watchdog stops at once, awake or asleep")
{
    SECTION("asleep, which has no end of its own")
    {
        subject watched;
        watchdog dog{watched, 40ms, detector_for(40ms)};
        REQUIRE(eventually([&] { return watched.looks == 2; }));
    }
    SECTION("between two looks")
    {
        // So many take less time than one second each, which is what they would wait until they look.
        constexpr auto times = 60;
        subject watched;
        watched.waits = true;
        auto const before = std::chrono::steady_clock::now();
        for (int i = 0; i < times; ++i)
            watchdog const dog{watched, 1h, detector_for(1h)};
        CHECK(std::chrono::steady_clock::now() - before < times * 1s);
    }
}

TEST_CASE("an aborted connection wakes waiters, frees TCP's memory, and resets the peer")
{
    asio::io_context context;
    tcp::acceptor acceptor{context, {asio::ip::address_v4::loopback(), 0}};
    tcp::socket sender{context};
    sender.connect(acceptor.local_endpoint());
    auto receiver = acceptor.accept();

    CHECK(gpurx::detail::bytes_held(receiver.native_handle()) == 0);
    std::string const data(10'000, 'x');
    asio::write(sender, asio::buffer(data));
    REQUIRE(eventually([&] { return gpurx::detail::bytes_held(receiver.native_handle()) >= data.size(); }));

    pollfd waiting{.fd = receiver.native_handle(), .events = POLLRDHUP, .revents = 0};
    std::atomic<pid_t> id{0};
    std::thread waiter{[&] {
        id = ::gettid();
        ::poll(&waiting, 1, -1);
    }};
    CHECK(eventually([&] { return id != 0 && is_asleep(id); }));
    gpurx::detail::abort_connection(receiver.native_handle());
    waiter.join();
    CHECK((waiting.revents & POLLHUP) != 0);
    CHECK(gpurx::detail::bytes_held(receiver.native_handle()) == 0);

    boost::system::error_code code;
    char byte = 0;
    sender.read_some(asio::buffer(&byte, 1), code);
    CHECK(code == asio::error::connection_reset);
}

TEST_CASE("a socket that is not TCP is shut down, and a closed descriptor holds no bytes")
{
    int pair[2] = {-1, -1};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    gpurx::detail::abort_connection(pair[0]);
    char byte = 0;
    CHECK(::recv(pair[1], &byte, 1, 0) == 0);
    ::close(pair[0]);
    ::close(pair[1]);
    CHECK(gpurx::detail::bytes_held(-1) == 0);
}
