// SPDX-License-Identifier: Apache-2.0
//
// Connections that wait in a listener's queue, and that nobody accepts, while their senders send all they can: what
// they hold of the memory, and what that means for flows beside them.
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <list>
#include <vector>

#include "bed.hpp"
#include "eventually.hpp"
#include "nic.hpp"
#include "session/watchdog.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
namespace asio = boost::asio;

namespace {

// Of which half is for receiving.
constexpr std::uint64_t queued_memory = 4 * mebibyte;
constexpr std::uint64_t queued_pages = queued_memory / 4096;
constexpr unsigned max_flows = 4;
// Of what the NIC's ring of 128 pages leaves.
constexpr std::uint64_t share = (queued_memory - (128 << 12)) / 2 / max_flows;

// Never ends by itself in the time of a test.
constexpr std::uint64_t endless = 65536 * mebibyte;

// A listener that is steered to the session, and never accepts.
class deaf_listener {
  public:
    deaf_listener(gpurx::rx_session& session, int backlog)
        : acceptor_{listen_on(session, context_.get_executor(), family::v4)}
    {
        // A second listen() changes the backlog, and nothing else.
        acceptor_.listen(backlog);
    }
    deaf_listener(deaf_listener const&) = delete;
    deaf_listener& operator=(deaf_listener const&) = delete;
    ~deaf_listener() { close(); }

    // So many connect and send, until `waiting` of them wait to be accepted and none can send any more.
    void be_called_by(unsigned connections, unsigned waiting)
    {
        for (unsigned i = 0; i < connections; ++i)
            senders_.emplace_back(acceptor_.local_endpoint(), stream{51 + i, endless});
        auto const all_stand_still = [&] {
            auto const connected = std::ranges::count_if(senders_, &peer_sender::is_connected);
            return connected >= static_cast<std::ptrdiff_t>(waiting) &&
                   std::ranges::count_if(senders_, &peer_sender::stands_still) == connected;
        };
        // They are looked at one after the other: none of them has sent anything between two looks.
        REQUIRE(gpurx::test::eventually([&] {
            auto const before = sent();
            return queued() >= waiting && all_stand_still() && all_stand_still() && sent() == before;
        }));
    }

    // Connections that wait.
    [[nodiscard]] unsigned queued()
    {
        tcp_info info{};
        socklen_t size = sizeof info;
        REQUIRE(::getsockopt(acceptor_.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
        return info.tcpi_unacked;
    }

    // What TCP holds for each that waits, as it counts: whole pages. Accepts them.
    [[nodiscard]] std::vector<std::uint64_t> held()
    {
        std::vector<std::uint64_t> each;
        while (queued() > 0)
            each.push_back(gpurx::detail::bytes_held(acceptor_.accept().native_handle()));
        return each;
    }

    // Resets those that wait.
    void close()
    {
        gpurx::error_code ignored;
        acceptor_.close(ignored);
    }

  private:
    [[nodiscard]] std::uint64_t sent() const
    {
        std::uint64_t sum = 0;
        for (auto const& sender : senders_)
            sum += sender.sent();
        return sum;
    }

    asio::io_context context_{1};
    std::list<peer_sender> senders_;
    tcp::acceptor acceptor_;
};

// A flow of the same session.
class flow_beside {
  public:
    flow_beside(gpurx::rx_session& session, stream what) : sender_{family::v4, what}
    {
        asio::co_spawn(context_, receive(session), rethrow);
    }

    // Whether it is over.
    bool ends_within(std::chrono::milliseconds time)
    {
        context_.run_for(time);
        return context_.stopped();
    }
    [[nodiscard]] outcome const& result() const noexcept { return result_; }

  private:
    asio::awaitable<void> receive(gpurx::rx_session& session)
    {
        gpurx::receiver rx{context_, session};
        co_await rx.async_connect(sender_.endpoint());
        co_await consume(std::move(rx), way::read, result_);
    }

    outcome result_;
    peer_sender sender_;
    asio::io_context context_{1};
};

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "a connection that is not accepted holds device pages, as many as a flow may",
                 "[smoke][queue]")
{
    auto session = open_session(queued_memory, {.max_flows = max_flows});
    auto const in_the_ring = pools_now().in_flight;
    deaf_listener listener{session, 3};
    listener.be_called_by(4, 4);
    // The kernel lets one more than the backlog wait.
    CHECK(listener.queued() == 4);

    auto const pages = pools_now().in_flight - in_the_ring;
    auto const held = listener.held();
    fmt::print("4 connections hold {} pages;", pages);
    for (auto const each : held)
        fmt::print(" {}", each);
    fmt::print(" of {} bytes\n", share);
    constexpr std::uint64_t segment = 64 << 10;
    for (auto const each : held) {
        CHECK(each > share / 2);
        CHECK(each <= share + segment);
    }
    CHECK(pages > 4 * share / 4096 / 2);
    CHECK(pages <= 4 * (share + segment) / 4096);
    CHECK(session.stats().bytes() == 0);
}

TEST_CASE_METHOD(unchanged_nic, "connections that are not accepted can take every page, and other flows stand still",
                 "[queue]")
{
    auto session = open_session(queued_memory, {.max_flows = max_flows});
    deaf_listener listener{session, 128};
    listener.be_called_by(12, 12);
    auto const slack = gpurx::detail::pages_of_a_segment(4096);
    CHECK(pools_now().in_flight > queued_pages - slack);

    flow_beside flow{session, {61, 8 * mebibyte}};
    // Packets find no page, some times in a row, and not a byte arrives in between.
    std::uint64_t bytes = 0;
    bool ended = false;
    do {
        bytes = session.stats().bytes();
        auto const failures = allocation_failures();
        do
            ended = flow.ends_within(100ms);
        while (!ended && allocation_failures() < failures + 2);
    } while (!ended && session.stats().bytes() != bytes);
    CHECK_FALSE(ended);
    fmt::print("beside 12 connections a flow stands still after {} bytes\n", bytes);

    // Nothing is lost of it but time.
    listener.close();
    CHECK(flow.ends_within(60s));
    INFO(flow.result());
    CHECK(intact(flow.result(), 8 * mebibyte));
}

TEST_CASE_METHOD(unchanged_nic, "flows go on beside a full queue whose connections count among max_flows", "[queue]")
{
    auto session = open_session(queued_memory, {.max_flows = max_flows});
    deaf_listener listener{session, 1};
    listener.be_called_by(10, 2);
    CHECK(listener.queued() == 2);

    nic_fault const drops{"drop", 30};
    auto const outcomes =
        transfer(session, {{62, 8 * mebibyte}, {63, 8 * mebibyte}}, family::v4, way::read, role::connects);
    for (auto const& outcome : outcomes) {
        INFO(outcome);
        CHECK(intact(outcome, 8 * mebibyte));
    }
    CHECK(listener.queued() == 2);
    CHECK(drops.injected() > 3);
}
