// SPDX-License-Identifier: Apache-2.0
//
// What the socket of a flow seldom says, from the real kernel: no room for one control message, fewer pages taken back
// than were given, calls cut short by signals.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <vector>

#include "bed.hpp"
#include "flow/devmem_uapi.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
namespace asio = boost::asio;
namespace uapi = gpurx::detail::uapi;

namespace {

constexpr std::uint64_t first_bytes = 200'000;

// What recvmsg says on a socket where device memory waits, to somebody with so much room for control messages.
int errno_with_room_for(int socket, std::size_t control_size)
{
    pollfd waiting{.fd = socket, .events = POLLIN, .revents = 0};
    ::poll(&waiting, 1, 60'000);
    std::vector<std::byte> control(control_size);
    std::array<std::byte, 64> bytes{};
    iovec where{.iov_base = bytes.data(), .iov_len = bytes.size()};
    msghdr message{};
    message.msg_iov = &where;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    return ::recvmsg(socket, &message, uapi::msg_sock_devmem | MSG_DONTWAIT) < 0 ? errno : 0;
}

// Behind the library's back: gives back whatever the socket has out of a memory of 1024 pages, as its only one: by
// their array tokens, if it has any, and by up to 1024 xarray tokens. Returns how many tokens that were.
int give_all_back(int socket)
{
    int all_taken = 0;
    for (auto const first : {std::uint32_t{1}, uapi::xarray_token}) {
        uapi::dmabuf_token const all{.token_start = first, .token_count = uapi::max_dontneed_pages};
        for (int taken = 1; taken > 0; all_taken += taken) {
            taken = ::setsockopt(socket, SOL_SOCKET, uapi::so_devmem_dontneed, &all, sizeof all);
            REQUIRE(taken >= 0);
        }
    }
    return all_taken;
}

// One connection whose sender holds on after the first part.
struct odd_flow {
    odd_flow(gpurx::rx_session& session, family version, std::uint64_t bytes)
        : acceptor{listen_on(session, context.get_executor(), version)},
          sender{acceptor.local_endpoint(), {61, bytes}, first_bytes},
          rx{context, session, acceptor.accept()}
    {}

    // Runs what a test does with the receiver.
    template <class Steps>
    void run(Steps&& steps)
    {
        asio::co_spawn(context, std::forward<Steps>(steps), rethrow);
        context.restart();
        context.run();
    }

    asio::io_context context{1};
    tcp::acceptor acceptor;
    peer_sender sender;
    gpurx::receiver rx;
};

// Signals this thread every millisecond, and lets them cut system calls short.
class signal_rain {
  public:
    signal_rain()
    {
        struct sigaction cut {};
        cut.sa_handler = [](int) { ++drops; };
        ::sigaction(SIGUSR1, &cut, &before_);
        sigevent event{};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = SIGUSR1;
        event._sigev_un._tid = static_cast<pid_t>(::syscall(SYS_gettid));
        if (::timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0)
            throw std::system_error{errno, std::system_category(), "timer_create"};
        itimerspec const often{.it_interval = {0, 1'000'000}, .it_value = {0, 1'000'000}};
        ::timer_settime(timer_, 0, &often, nullptr);
    }
    signal_rain(signal_rain const&) = delete;
    signal_rain& operator=(signal_rain const&) = delete;
    ~signal_rain()
    {
        ::timer_delete(timer_);
        ::sigaction(SIGUSR1, &before_, nullptr);
    }

    static inline std::atomic<unsigned> drops{0};

  private:
    struct sigaction before_ {};
    timer_t timer_{};
};

}  // namespace

// The library's own control buffer has room for many segments, so the kernel never tells it 525; what it does if the
// kernel should, tests/asio/devmem.cpp tests. Here: that the number is right, and that the bytes stay where they are.
TEST_CASE_METHOD(unchanged_nic, "no room for a control message takes nothing off the stream", "[smoke][socket_odds]")
{
    auto session = open_session(4 * mebibyte, {.max_flows = 1});
    odd_flow flow{session, GENERATE(family::v4, family::v6), mebibyte};
    // Before the library receives: it takes all that is there, and keeps for later what a read does not want.
    CHECK(errno_with_room_for(flow.rx.native_handle(), CMSG_SPACE(sizeof(uapi::dmabuf_cmsg)) - 8) == uapi::etoosmall);
    CHECK(errno_with_room_for(flow.rx.native_handle(), 0) == uapi::etoosmall);

    flow.sender.resume();
    outcome result;
    flow.run([&]() -> asio::awaitable<void> { return consume(std::move(flow.rx), way::loan, result); });
    INFO(result);
    CHECK(intact(result, mebibyte));
    CHECK(session.stats().tokens_out == 0);
}

TEST_CASE_METHOD(unchanged_nic, "tokens that are back already are counted, and nothing is freed twice",
                 "[smoke][socket_odds]")
{
    auto session = open_session(4 * mebibyte, {.max_flows = 1});
    odd_flow flow{session, GENERATE(family::v4, family::v6), 16 * mebibyte};
    std::vector<gpurx::rx_buffer> loans;
    std::uint64_t seed = 0;
    flow.run([&]() -> asio::awaitable<void> {
        co_await gpurx::async_read(flow.rx, gpurx::host_span(seed), token);
        for (std::size_t held = 0; held < first_bytes;) {
            auto [error, loan] = co_await flow.rx.async_receive(token);
            if (error)
                co_return;
            held += loan.size();
            loans.push_back(std::move(loan));
        }
    });
    pattern_check check{seed};
    check_loans(check, loans);
    auto const out = session.stats().tokens_out;
    CHECK(out >= first_bytes / 4096);
    auto const freed = give_all_back(flow.rx.native_handle());
    REQUIRE(freed > 0);
    CHECK(static_cast<std::uint64_t>(freed) == out);
    CHECK(give_all_back(flow.rx.native_handle()) == 0);
    loans.clear();
    CHECK(session.stats().release_shortfalls == out);
    CHECK(session.stats().tokens_out == 0);

    // Several times the memory, a few loans at a time: a page that was free twice would be in two of them.
    flow.sender.resume();
    flow.run([&]() -> asio::awaitable<void> {
        for (std::size_t held = 0;;) {
            auto [error, loan] = co_await flow.rx.async_receive(token);
            held += loan.size();
            loans.push_back(std::move(loan));
            if (!error && held < mebibyte / 2)
                continue;
            check_loans(check, loans);
            loans.clear();
            held = 0;
            if (error)
                co_return;
        }
    });
    CHECK(check.position() == 16 * mebibyte);
    CHECK(check.wrong_pieces() == 0);
    CHECK(session.stats().release_shortfalls == out);
}

// What waits and can be cut short is epoll and, between sessions, the journal's lock; recvmsg does not block.
TEST_CASE_METHOD(unchanged_nic, "signals cut nothing short: not set-up, not receiving, not the end",
                 "[smoke][socket_odds]")
{
    auto const how = GENERATE(way::read, way::loan);
    auto const what = GENERATE(role::accepts, role::connects);
    auto const before = signal_rain::drops.load();
    {
        signal_rain const rain;
        auto session = open_session(4 * mebibyte, {.max_flows = 2});
        auto const outcomes = transfer(session, {{62, 8 * mebibyte}, {63, 8 * mebibyte}}, family::v4, how, what);
        for (auto const& result : outcomes) {
            INFO(result);
            CHECK(intact(result, 8 * mebibyte));
        }
    }
    auto const met = signal_rain::drops.load() - before;
    fmt::print("{} signals\n", met);
    CHECK(met > 20);  // the timer is as fine as the kernel's clock tick
}
