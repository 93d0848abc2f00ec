// SPDX-License-Identifier: Apache-2.0
//
// Flows whose NIC changes in the middle of their streams: they move to the queues of another session, to ones without a
// session, and back, and queues restart around them.
#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>

#include "bed.hpp"
#include "nic.hpp"
#include "nic/flow_rule.hpp"

using namespace gpurx::lab;
using namespace std::chrono_literals;
namespace asio = boost::asio;
namespace detail = gpurx::detail;

namespace {

// What arrives before the flow moves again: several times the memory of a session, so that a page that does not come
// back is missed.
constexpr std::uint64_t leg = 8 * mebibyte;
constexpr std::size_t moved_memory = 2 * mebibyte;
// What is still on its way when the flow moves, and may go either way.
constexpr std::uint64_t on_the_way = 256 << 10;

// A rule of somebody else, for as long as this lives. One connection is more than a port: the NIC prefers this one.
class foreign_rule {
  public:
    foreign_rule(tcp::endpoint const& local, tcp::endpoint const& remote, unsigned queue)
        : foreign_rule{{detail::match_connection(local, remote), detail::rule_target::queue, queue}}
    {}
    explicit foreign_rule(detail::flow_rule const& rule) : id_{nic_.add_rule(rule)} {}
    foreign_rule(foreign_rule const&) = delete;
    foreign_rule& operator=(foreign_rule const&) = delete;
    ~foreign_rule() { nic_.remove_rule(id_); }

  private:
    detail::kernel_nic nic_{near_interface};
    std::uint32_t id_;
};

// One connection whose sender holds on after each leg.
class moving_flow {
  public:
    moving_flow(gpurx::rx_session& session, family version, way how, unsigned legs)
        : session_{session},
          acceptor_{listen_on(session, context_.get_executor(), version)},
          sender_{acceptor_.local_endpoint(), {51, legs * leg}, 0}
    {
        gpurx::receiver rx{context_, session, acceptor_.accept()};
        local_ = rx.local_endpoint();
        remote_ = rx.remote_endpoint();
        asio::co_spawn(context_, consume(std::move(rx), how, result_), rethrow);
    }

    [[nodiscard]] tcp::endpoint const& local() const noexcept { return local_; }
    [[nodiscard]] tcp::endpoint const& remote() const noexcept { return remote_; }
    [[nodiscard]] outcome const& result() const noexcept { return result_; }

    // Returns while the last bytes of the leg arrive, or if the stream has ended early.
    void run_leg()
    {
        sender_.pause_at(++legs_ * leg);
        while (!context_.stopped() && session_.stats().bytes() < legs_ * leg - on_the_way)
            context_.run_for(1ms);
    }
    void run_to_the_end() { context_.run(); }

  private:
    gpurx::rx_session& session_;
    outcome result_;
    asio::io_context context_{1};
    tcp::acceptor acceptor_;
    peer_sender sender_;
    tcp::endpoint local_;
    tcp::endpoint remote_;
    unsigned legs_ = 0;
};

gpurx::rx_session small_session(std::function<void(std::string_view)> notice = {})
{
    return open_session(moved_memory, {.max_flows = 1, .notice = std::move(notice)});
}

void check_nothing_out(gpurx::rx_session const& session)
{
    CHECK(session.stats().tokens_out == 0);
    CHECK(session.stats().release_shortfalls == 0);
    CHECK(session.stats().release_failures == 0);
}

// The one that the session has made for the listener.
detail::installed_rule rule_of_port(detail::kernel_nic& nic, std::uint16_t port)
{
    for (auto const& found : nic.rules()) {
        if (found.rule && found.rule->match.local_port == port)
            return found;
    }
    throw std::runtime_error{fmt::format("no rule for port {}", port)};
}

// But for the channels they undo each other. Fewer channels wait for the end of the session.
constexpr char const* accepted_changes[] = {
    "ethtool -G dms0 rx 64",
    "ethtool -G dms0 rx 512",
    "ethtool -G dms0 rx 128",
    "ethtool -L dms0 combined 6",
    "ethtool -K dms0 rx-gro-hw off",
    "ethtool -K dms0 rx-gro-hw on",
    "ethtool -C dms0 rx-usecs 100",
    "ethtool -C dms0 rx-usecs 0",
    "ip link set dms0 mtu 9000",
    "ip link set dms0 mtu 1500",
    "ip link set dms0 promisc on",
    "ip link set dms0 promisc off",
    "ethtool --set-tunable dms0 rx-copybreak 0",
    // IPv6 forgets its addresses otherwise.
    "sysctl -qw net.ipv6.conf.dms0.keep_addr_on_down=1; ip link set dms0 down; ip link set dms0 up",
};
// A queue with memory, and a rule to it, stand against these.
constexpr char const* refused_changes[] = {
    "ethtool -G dms0 tcp-data-split off",
    "ethtool -G dms0 hds-thresh 100",
    "ethtool -L dms0 combined 1",
};

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "a flow moves to the queues of another session and back", "[move]")
{
    auto const version = GENERATE(family::v4, family::v6);
    auto const how = GENERATE(way::read, way::loan);
    CAPTURE(version == family::v4, how == way::read);

    auto home = small_session();
    auto other = small_session();
    REQUIRE(home.queues() != other.queues());
    moving_flow flow{home, version, how, 5};
    flow.run_leg();
    for (int turn = 0; turn < 2; ++turn) {
        {
            foreign_rule const away{flow.local(), flow.remote(), other.queues().front()};
            flow.run_leg();
        }
        flow.run_leg();
    }
    flow.run_to_the_end();

    INFO(flow.result());
    CHECK(intact(flow.result(), 5 * leg));
    auto const& stats = flow.result().stats;
    CHECK(stats.resteered_bytes >= 2 * (leg - on_the_way));
    CHECK(stats.device_bytes >= 3 * (leg - on_the_way));
    CHECK(stats.resteered_bytes + stats.device_bytes == 5 * leg + 8);
    // Each session counts the tokens of its own memory, and has them all back; the bytes are the flow's.
    CHECK(home.stats().tokens_high_water > 0);
    CHECK(other.stats().tokens_high_water > 0);
    CHECK(other.stats().bytes() == 0);
    check_nothing_out(home);
    check_nothing_out(other);

    // Nothing of the visit is left: the other session's memory serves a flow of its own.
    auto const outcomes = transfer(other, {{52, leg}}, version, how, role::accepts);
    INFO(outcomes[0]);
    CHECK(intact(outcomes[0], leg));
    CHECK(outcomes[0].stats.device_bytes == leg + 8);
}

TEST_CASE_METHOD(unchanged_nic, "a flow whose rule is removed goes on in host memory, and comes back with the rule",
                 "[move]")
{
    auto const version = GENERATE(family::v4, family::v6);
    auto const how = GENERATE(way::read, way::loan);
    CAPTURE(version == family::v4, how == way::read);

    std::string notices;
    {
        auto session = small_session([&](std::string_view sentence) { notices.append(sentence).append("\n"); });
        moving_flow flow{session, version, how, 3};
        flow.run_leg();
        detail::kernel_nic nic{near_interface};
        auto const rule = rule_of_port(nic, flow.local().port());
        nic.remove_rule(rule.id);
        flow.run_leg();
        {
            foreign_rule const back{*rule.rule};
            flow.run_leg();
            flow.run_to_the_end();
        }

        INFO(flow.result());
        CHECK(intact(flow.result(), 3 * leg));
        auto const& stats = flow.result().stats;
        CHECK(stats.host_bytes >= leg - on_the_way);
        CHECK(stats.device_bytes >= 2 * (leg - on_the_way));
        CHECK(stats.host_bytes + stats.device_bytes == 3 * leg + 8);
        check_nothing_out(session);
    }
    // Whose rule it was says so at the end.
    INFO(notices);
    CHECK(notices.find("was removed by another program") != std::string::npos);
}

TEST_CASE_METHOD(unchanged_nic, "a stream stays whole, and in device memory, while the NIC is reconfigured",
                 "[reconfigure]")
{
    auto const how = GENERATE(way::read, way::loan);
    CAPTURE(how == way::read);

    detail::kernel_nic nic{near_interface};
    auto const channels = nic.channels();
    {
        auto session = small_session();
        constexpr auto legs = static_cast<unsigned>(std::size(accepted_changes) + std::size(refused_changes));
        moving_flow flow{session, family::v4, how, legs};
        for (auto const* const change : accepted_changes) {
            flow.run_leg();
            run_command(change);
        }
        for (auto const* const change : refused_changes) {
            flow.run_leg();
            INFO(change);
            CHECK_THROWS(run_command(change));
        }
        flow.run_to_the_end();

        INFO(flow.result());
        CHECK(intact(flow.result(), legs * leg));
        CHECK(flow.result().stats.device_bytes == legs * leg + 8);
        check_nothing_out(session);
    }
    nic.set_channels(channels);
}
