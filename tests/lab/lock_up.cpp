// SPDX-License-Identifier: Apache-2.0
//
// The lock-up: out-of-order data holds every page, and the missing segment can never be received. It is brought about
// where the budget is switched off, ended by the watchdog, and absent where the budget is on.
#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>

#include "bed.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
namespace asio = boost::asio;

namespace {

constexpr std::uint64_t mebibyte = 1 << 20;
// What on_host makes of less, where there are huge pages.
constexpr std::uint64_t memory_size = 2 * mebibyte;

// Never ends by itself in the time of a test.
constexpr std::uint64_t endless = 4096 * mebibyte;

void rethrow(std::exception_ptr failure)
{
    if (failure)
        std::rethrow_exception(failure);
}

// A wire with a long way to go, whose sender begins with much at once, in frames that take a page each.
class long_wire {
  public:
    long_wire()
    {
        run_command("ethtool -K dms0 rx-gro-hw off");
        run_command("ip -n peer route replace 10.77.0.0/24 dev dms1 src 10.77.0.2 initcwnd 300");
        restart_after_idle(false);
    }
    long_wire(long_wire const&) = delete;
    long_wire& operator=(long_wire const&) = delete;
    ~long_wire()
    {
        restart_after_idle(true);
        run_command("ip -n peer route replace 10.77.0.0/24 dev dms1 src 10.77.0.2");
        run_command("ethtool -K dms0 rx-gro-hw on");
    }

  private:
    static void restart_after_idle(bool on)
    {
        run_command(fmt::format("ip netns exec peer sh -c 'echo {} > /proc/sys/net/ipv4/tcp_slow_start_after_idle'",
                                static_cast<int>(on)));
    }
    nic_fault delay_{"delay_us", 5000};
};

// One connection, and what is seen of it.
class endangered_flow {
  public:
    endangered_flow(gpurx::rx_session& session, std::uint64_t bytes)
        : session_{session},
          acceptor_{listen_on(session, context_.get_executor(), family::v4)},
          sender_{acceptor_.local_endpoint(), {31, bytes}, 0}
    {
        gpurx::receiver rx{context_, session, acceptor_.accept()};
        asio::co_spawn(context_, consume(std::move(rx), way::read, result_), rethrow);
    }

    // Lets the window open, then loses every third frame of a burst that is larger than the memory, and no more.
    void lose_frames()
    {
        std::uint64_t sent = 0;
        for (; sent < 600'000; sent += 30'000) {
            sender_.pause_at(sent + 30'000);
            context_.run_for(20ms);
        }
        nic_fault const drops{"drop", 3};
        sender_.pause_at(sent + 300'000);
        context_.run_for(50ms);
        CHECK(drops.injected() > 20);
        sender_.resume();
    }

    // Runs until the flow has ended (true), or nothing has arrived for this long.
    bool run_until_still(std::chrono::milliseconds still)
    {
        for (auto before = session_.stats().bytes();;) {
            context_.run_for(still);
            if (context_.stopped())
                return true;
            auto const now = session_.stats().bytes();
            if (now == before)
                return false;
            before = now;
        }
    }

    [[nodiscard]] outcome const& result() const noexcept { return result_; }

  private:
    gpurx::rx_session& session_;
    outcome result_;
    asio::io_context context_{1};
    tcp::acceptor acceptor_;
    peer_sender sender_;
};

gpurx::rx_session_options unlimited(std::chrono::milliseconds lock_up_limit)
{
    // Receive buffers sixteen times as large as the memory: the budget is off.
    return {.max_flows = 1, .receive_memory = 16 * memory_size, .lock_up_limit = lock_up_limit};
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "without budget and watchdog a flow locks up for good", "[lock_up]")
{
    SKIP(
        "the lock-up is not brought about reliably yet: memory of less than 2 MiB is rounded up, and one flow does not "
        "fill that with out-of-order data");
    auto session = open_session(memory_size, unlimited(0ms));
    long_wire const wire;
    auto const failures = allocation_failures();
    {
        endangered_flow flow{session, endless};
        flow.lose_frames();
        CHECK_FALSE(flow.run_until_still(12s));
        fmt::print("nothing has moved for 12 s after {} bytes\n", session.stats().bytes());
        // Not an idle network, and not a slow consumer: the sender has tried again, every page is in flight and none
        // of them on loan.
        CHECK(allocation_failures() > failures);
        CHECK(pools_now().in_flight == memory_size / 4096);
        CHECK(session.stats().tokens_out == 0);
    }
}

TEST_CASE_METHOD(unchanged_nic, "the watchdog ends a flow that is locked up, and its pages serve the next", "[lock_up]")
{
    SKIP(
        "the lock-up is not brought about reliably yet: memory of less than 2 MiB is rounded up, and one flow does not "
        "fill that with out-of-order data");
    auto session = open_session(memory_size, unlimited(1000ms));
    {
        long_wire const wire;
        for (int round = 0; round < 3; ++round) {
            endangered_flow flow{session, endless};
            flow.lose_frames();
            CHECK(flow.run_until_still(30s));
            INFO(flow.result());
            CHECK(flow.result().error == gpurx::errc::memory_locked_up);
            CHECK(flow.result().wrong_pieces == 0);
        }
    }
    auto const outcomes = transfer(session, {{33, 100'000}}, family::v4, way::read, role::accepts);
    INFO(outcomes[0]);
    CHECK(intact(outcomes[0], 100'000));
}

TEST_CASE_METHOD(unchanged_nic, "with the budget no flow locks up", "[lock_up]")
{
    auto session = open_session(memory_size, {.max_flows = 1, .lock_up_limit = 3000ms});
    long_wire const wire;
    for (int round = 0; round < 3; ++round) {
        endangered_flow flow{session, mebibyte};
        flow.lose_frames();
        CHECK(flow.run_until_still(30s));
        INFO(flow.result());
        CHECK(intact(flow.result(), mebibyte));
    }
}

TEST_CASE_METHOD(unchanged_nic, "with the budget a flow gets through constant loss", "[lock_up]")
{
    auto session = open_session(memory_size, {.max_flows = 1, .lock_up_limit = 3000ms});
    nic_fault const drops{"drop", 20};
    for (std::uint64_t seed = 41; seed < 44; ++seed) {
        auto const outcomes = transfer(session, {{seed, 8 * mebibyte}}, family::v4, way::read, role::accepts);
        INFO(outcomes[0]);
        CHECK(intact(outcomes[0], 8 * mebibyte));
    }
}

TEST_CASE_METHOD(unchanged_nic, "an idle flow is not taken for one that is locked up", "[lock_up]")
{
    auto session = open_session(memory_size, {.max_flows = 2, .lock_up_limit = 500ms});
    // Fill the pool's caches first: all pages have been in use.
    auto const outcomes = transfer(session, {{34, 8 * mebibyte}}, family::v4, way::read, role::accepts);
    CHECK(intact(outcomes[0], 8 * mebibyte));

    asio::io_context context{1};
    auto acceptor = listen_on(session, context.get_executor(), family::v4);
    peer_sender sender{acceptor.local_endpoint(), {35, 100'000}};
    sender.pause_at(50'000);
    outcome result;
    gpurx::receiver rx{context, session, acceptor.accept()};
    asio::co_spawn(context, consume(std::move(rx), way::loan, result), rethrow);
    context.run_for(3s);
    CHECK_FALSE(context.stopped());
    sender.resume();
    context.run();
    INFO(result);
    CHECK(intact(result, 100'000));
}
