// SPDX-License-Identifier: Apache-2.0
//
// The lock-up: out-of-order data holds every page, and the missing segment can never be received. It is brought about
// where the budget is switched off, ended by the watchdog, and absent where the budget is on. All with the least memory
// that the budget accepts, and the same losses.
#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <optional>

#include "bed.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
namespace asio = boost::asio;

namespace {

constexpr std::uint64_t tight_memory = 256 << 10;
constexpr std::uint64_t tight_pages = tight_memory / 4096;

// One frame of so many is lost: seldom enough for windows to grow.
constexpr unsigned losses = 1000;

// A flow that has lost frames before its window outgrew the memory may go on for minutes with a small one: after so
// many bytes another flow is tried, so many times.
constexpr std::uint64_t patience = 64 * mebibyte;
constexpr int flows_to_try = 12;

// Never ends by itself in the time of a test.
constexpr std::uint64_t endless = 65536 * mebibyte;

// Memory in ordinary pages, which may be small, and a ring that holds half of it: what is in flight beyond that is
// data. The wire is long enough for windows larger than the memory, and each frame takes a page of its own.
class small_memory : public unchanged_nic {
  public:
    small_memory()
    {
        run_command("ethtool -G dms0 rx 32");
        run_command("ethtool -K dms0 rx-gro-hw off");
    }
    small_memory(small_memory const&) = delete;
    small_memory& operator=(small_memory const&) = delete;
    ~small_memory()
    {
        run_command("ethtool -K dms0 rx-gro-hw on");
        run_command("ethtool -G dms0 rx 128");
    }

  private:
    ordinary_pages pages_;
    nic_fault delay_{"delay_us", 2000};
};

gpurx::rx_session open_small(gpurx::rx_session_options options, std::size_t size = tight_memory)
{
    auto session = open_session(size, std::move(options));
    REQUIRE(session.memory().span().size() == size);
    return session;
}

gpurx::rx_session open_unlimited(std::chrono::milliseconds lock_up_limit)
{
    // Receive buffers sixteen times as large as the memory: the budget is off.
    return open_small({.max_flows = 1, .receive_memory = 16 * tight_memory, .lock_up_limit = lock_up_limit});
}

// One connection, and what is seen of it.
class endangered_flow {
  public:
    explicit endangered_flow(gpurx::rx_session& session)
        : session_{session},
          acceptor_{listen_on(session, context_.get_executor(), family::v4)},
          sender_{acceptor_.local_endpoint(), {31, endless}}
    {
        gpurx::receiver rx{context_, session, acceptor_.accept()};
        asio::co_spawn(context_, consume(std::move(rx), way::read, result_), rethrow);
    }

    // Runs until the sender has tried so often in vain (true), or the flow has ended, or enough has arrived.
    bool falls_silent(unsigned tries)
    {
        auto const enough = session_.stats().bytes() + patience;
        while (!ended() && session_.stats().bytes() < enough) {
            if (sender_.tries_in_vain() >= tries)
                return true;
            context_.run_for(look);
        }
        return false;
    }

    // Runs until the sender has tried again so often (true), or something arrives, or the flow has ended. Each try is
    // twice as long after the one before.
    bool stays_silent(unsigned tries)
    {
        auto const bytes = session_.stats().bytes();
        auto const wanted = sender_.tries_in_vain() + tries;
        while (!ended() && session_.stats().bytes() == bytes) {
            if (sender_.tries_in_vain() >= wanted)
                return true;
            context_.run_for(look);
        }
        return false;
    }

    // Loses frames until the flow is silent, then no more; true if it is still silent after another try.
    bool locks_up()
    {
        {
            nic_fault const drops{"drop", losses};
            if (!falls_silent(2))
                return false;
        }
        return stays_silent(1);
    }

    [[nodiscard]] bool ended() const { return context_.stopped(); }
    [[nodiscard]] outcome const& result() const noexcept { return result_; }

  private:
    static constexpr auto look = 10ms;

    gpurx::rx_session& session_;
    outcome result_;
    asio::io_context context_{1};
    tcp::acceptor acceptor_;
    peer_sender sender_;
};

}  // namespace

TEST_CASE_METHOD(small_memory, "without budget and watchdog a flow locks up for good", "[lock_up]")
{
    auto session = open_unlimited(0ms);
    std::optional<endangered_flow> flow;
    int flows = 0;
    do {
        REQUIRE(++flows <= flows_to_try);
        flow.emplace(session);
    } while (!flow->locks_up());
    // Not an idle network, and not a slow consumer: the sender tries again, but every page is in flight and none of
    // them on loan.
    auto const bytes = session.stats().bytes();
    auto const failures = allocation_failures();
    CHECK(flow->stays_silent(2));
    CHECK_FALSE(flow->ended());
    fmt::print("flow {} locked up after {} bytes\n", flows, bytes);
    CHECK(session.stats().bytes() == bytes);
    CHECK(allocation_failures() > failures);
    CHECK(pools_now().in_flight == tight_pages);
    CHECK(session.stats().tokens_out == 0);
}

TEST_CASE_METHOD(small_memory, "the watchdog ends a flow that is locked up, and its pages serve the next",
                 "[smoke][lock_up]")
{
    auto session = open_unlimited(1000ms);
    int ended = 0;
    for (int flows = 1; ended < 3; ++flows) {
        REQUIRE(flows <= 3 * flows_to_try);
        endangered_flow flow{session};
        nic_fault const drops{"drop", losses};
        // Silence is the watchdog's to end, after a second of it: at the latest when the sender has tried again, which
        // it does ever more seldom. Six times take twelve seconds.
        REQUIRE_FALSE(flow.falls_silent(6));
        if (!flow.ended())
            continue;
        ++ended;
        INFO(flow.result());
        CHECK(flow.result().error == gpurx::errc::memory_locked_up);
        CHECK(flow.result().bytes > 0);
        CHECK(flow.result().wrong_pieces == 0);
    }
    auto const outcomes = transfer(session, {{33, 100'000}}, family::v4, way::read, role::accepts);
    INFO(outcomes[0]);
    CHECK(intact(outcomes[0], 100'000));
}

TEST_CASE_METHOD(small_memory, "with the budget no flow locks up", "[smoke][lock_up]")
{
    // The least that is accepted: what the ring keeps, and two shares, of which one is for receiving.
    CHECK_THROWS_AS(open_small({.max_flows = 1}), gpurx::system_error);
    auto session = open_small({.max_flows = 1, .lock_up_limit = 5000ms}, tight_memory + (128 << 10));
    nic_fault const drops{"drop", losses};
    for (std::uint64_t seed = 41; seed < 44; ++seed) {
        auto const outcomes = transfer(session, {{seed, 8 * mebibyte}}, family::v4, way::read, role::accepts);
        INFO(outcomes[0]);
        CHECK(intact(outcomes[0], 8 * mebibyte));
    }
    CHECK(drops.injected() > 3);
}

TEST_CASE_METHOD(small_memory, "an idle flow is not taken for one that is locked up", "[lock_up]")
{
    // A ring that holds all of the memory, as somebody may make it: every page is in flight all the time.
    auto session = open_small({.max_flows = 1, .lock_up_limit = 500ms}, tight_memory + (128 << 10));
    run_command("ethtool -G dms0 rx 128");
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
