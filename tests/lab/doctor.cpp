// SPDX-License-Identifier: Apache-2.0
//
// gpurx-doctor on dms0, in the states that devmemsim can show. What it says to do is done, word for word, and it is
// asked again.
#include <fmt/format.h>
#include <sys/wait.h>

#include <unistd.h>
#include <array>
#include <boost/json.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdio>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "bed.hpp"
#include "container.hpp"
#include "memory/memory_state.hpp"
#include "nic.hpp"

using namespace gpurx::lab;
using Catch::Matchers::ContainsSubstring;
namespace detail = gpurx::detail;

namespace {

// What a command printed on its standard output, and its exit status.
struct ending {
    int status = -1;
    std::string text;
};

ending run(std::string const& command)
{
    ending result;
    auto* const pipe = ::popen(command.c_str(), "re");
    if (pipe == nullptr)
        throw std::runtime_error{"cannot run " + command};
    std::array<char, 4096> part{};
    while (auto const count = std::fread(part.data(), 1, part.size(), pipe))
        result.text.append(part.data(), count);
    if (auto const status = ::pclose(pipe); WIFEXITED(status))
        result.status = WEXITSTATUS(status);
    return result;
}

struct finding {
    std::string severity = "none";
    std::string evidence;
    std::string command;
};

struct examination {
    int status = -1;
    boost::json::array findings;  // the worst first

    [[nodiscard]] finding about(std::string_view topic) const
    {
        for (auto const& one : findings) {
            if (one.at("topic").as_string() == topic)
                return {boost::json::value_to<std::string>(one.at("severity")),
                        boost::json::value_to<std::string>(one.at("evidence")),
                        boost::json::value_to<std::string>(one.at("command"))};
        }
        return {};
    }
};

examination examine(std::string const& arguments = {}, std::string const& before = {})
{
    auto const said = run(fmt::format("{} {} {} --json {}", before, GPURX_DOCTOR, near_interface, arguments));
    INFO(said.text);
    auto const all = boost::json::parse(said.text);
    return {said.status, all.at("interfaces").at(0).at("findings").as_array()};
}

// Spoils the NIC, and does what is said to do about `topic`.
void check_mended(std::string const& spoil, std::string_view topic, std::string_view severity, int status)
{
    CAPTURE(spoil);
    run_command(spoil);
    auto const spoilt = examine();
    auto const found = spoilt.about(topic);
    CHECK(found.severity == severity);
    CHECK(spoilt.status == status);
    REQUIRE_FALSE(found.command.empty());
    CAPTURE(found.command);
    run_command(found.command);
    auto const now = examine();
    CHECK(now.about(topic).severity != severity);
    CHECK(now.status == 0);
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "the doctor finds dms0 ready, and says which tokens there are", "[doctor]")
{
    auto const found = examine();
    CHECK(found.status == 0);
    CHECK(found.about("driver").severity == "ok");
    CHECK(found.about("kernel").severity == "ok");
    CHECK(found.about("tokens").severity == (kernel_has_array_tokens() ? "ok" : "note"));
    CHECK(found.about("page-size").severity == (kernel_has_page_sizes() ? "ok" : "note"));
    auto const all = run(GPURX_DOCTOR);
    CHECK(all.status == 0);
    CHECK_THAT(all.text, ContainsSubstring("* dms0  ready"));
    CHECK_THAT(all.text, ContainsSubstring("  lo    not possible"));
}

TEST_CASE_METHOD(unchanged_nic, "what a session sets by itself is no fault", "[doctor]")
{
    run_command("ethtool -K dms0 ntuple off");
    detail::kernel_nic nic{near_interface};
    nic.set_data_split(detail::ethtool::data_split::off);
    auto const found = examine();
    CHECK(found.status == 0);
    CHECK(found.about("header-split").severity == "note");
    CHECK(found.about("ntuple").severity == "note");
    {
        auto const session = open_session(8 * mebibyte);
        CHECK(examine().about("header-split").severity == "ok");
    }
    nic.set_data_split(detail::ethtool::data_split::automatic);
    run_command("ethtool -K dms0 ntuple on");
}

TEST_CASE_METHOD(unchanged_nic, "what it says to do mends it", "[doctor]")
{
    check_mended("ethtool -X dms0 equal 3", "rss", "note", 0);
    check_mended("ethtool -N dms0 flow-type tcp4 dst-port 7777 action 3", "rules", "degraded", 1);
    check_mended("ethtool -X dms0 context new start 2 equal 2", "rss-context", "degraded", 1);
}

TEST_CASE_METHOD(unchanged_nic, "a ring that is too large for the memory is made to fit, and undone", "[doctor]")
{
    std::string const doctor = fmt::format("{} {} --memory 16MiB", GPURX_DOCTOR, near_interface);
    detail::kernel_nic nic{near_interface};
    auto const before = nic.rings().rx_frames;
    nic.set_rx_ring(4096);
    CHECK(examine("--memory 16MiB").about("rx-ring").severity == "blocking");
    CHECK(examine("--memory 48MiB").about("rx-ring").severity == "degraded");
    CHECK(examine("--memory 48MiB").status == 1);
    CHECK(examine().status == 0);

    auto const dry = run(doctor + " --fix --dry-run");
    CHECK(dry.text == "ethtool -G dms0 rx 1024\n");
    CHECK(dry.status == 2);
    CHECK(nic.rings().rx_frames == 4096U);
    CHECK(run(doctor + " --fix").status == 0);
    CHECK(nic.rings().rx_frames == 1024U);
    CHECK_THAT(examine().about("fixed").evidence, ContainsSubstring("4096 frames -> 1024 frames"));
    CHECK(run(fmt::format("{} {} --undo", GPURX_DOCTOR, near_interface)).status == 0);
    CHECK(nic.rings().rx_frames == 4096U);
    CHECK(examine().about("fixed").severity == "none");
    nic.set_rx_ring(before.value());
}

TEST_CASE_METHOD(unchanged_nic, "an interface that is down is set up, and undone", "[doctor]")
{
    run_command("sysctl -qw net.ipv6.conf.dms0.keep_addr_on_down=1");
    run_command("ip link set dms0 down");
    auto const down = examine();
    CHECK(down.status == 2);
    CHECK(down.about("link").severity == "blocking");
    CHECK(run(fmt::format("{} {} --fix", GPURX_DOCTOR, near_interface)).status == 0);
    detail::kernel_nic nic{near_interface};
    CHECK(nic.is_up());
    CHECK(run(fmt::format("{} {} --undo", GPURX_DOCTOR, near_interface)).status == 0);
    CHECK_FALSE(nic.is_up());
    nic.set_up(true);
}

TEST_CASE_METHOD(unchanged_nic, "it sees who has the queues", "[doctor]")
{
    SECTION("a binding of somebody else")
    {
        auto const memory = detail::make_host_memory(4096);
        detail::kernel_nic nic{near_interface};
        nic.set_data_split(detail::ethtool::data_split::on);
        {
            std::array const last{nic.channels().rx_queues() - 1};
            auto const bound = nic.bind_rx(last, memory->dmabuf_fd(), 0);
            auto const found = examine();
            CHECK(found.about("channels").severity == "ok");
            CHECK_THAT(found.about("channels").evidence,
                       ContainsSubstring(fmt::format("queue {}: memory {} is bound to it", last[0], bound->id())));
        }
        nic.set_data_split(detail::ethtool::data_split::automatic);
    }
    SECTION("a session that has all but one")
    {
        auto const most = detail::kernel_nic{near_interface}.channels().combined_max;
        auto const session = open_session(64 * mebibyte, {.rx_queues = most - 1});
        auto const found = examine();
        CHECK(found.status == 2);
        CHECK(found.about("channels").severity == "blocking");
        CHECK_THAT(found.about("channels").evidence, ContainsSubstring(fmt::format("process {}", ::getpid())));
        CHECK(found.about("sessions").severity == "note");
        CHECK(found.about("leftovers").severity == "none");
    }
}

TEST_CASE_METHOD(unchanged_nic, "without rights it says so, and what it can see", "[doctor]")
{
    auto const found = examine({}, "setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all");
    CHECK(found.status == 2);
    CHECK(found.about("rights").severity == "blocking");
    CHECK(found.about("driver").severity == "note");
    CHECK(found.about("header-split").severity == "ok");
    CHECK(found.about("channels").severity == "ok");
}

TEST_CASE_METHOD(unchanged_nic, "it puts back what a killed process left", "[doctor]")
{
    // Killed when the doctor sees its session.
    auto const script = fmt::format(
        "{0} --interface {2} --transport devmem --memory-size 8MiB --listen 10.77.0.1:9555 >/dev/null 2>&1 & "
        "for i in $(seq 100); do {1} {2} --json | grep -q '\"topic\":\"sessions\"' && break; sleep 0.2; done; "
        "kill -9 $!; wait $!; true",
        GPURX_RECEIVE_FILE, GPURX_DOCTOR, near_interface);
    run_command(script + " 2>/dev/null");
    auto const found = examine();
    CHECK(found.status == 1);
    CHECK(found.about("leftovers").severity == "degraded");
    CHECK_THAT(found.about("leftovers").evidence, ContainsSubstring("has ended"));
    CHECK(found.about("leftovers").command == "gpurx-doctor dms0 --fix");
    CHECK(run(fmt::format("{} {} --fix", GPURX_DOCTOR, near_interface)).status == 0);
    CHECK(examine().about("leftovers").severity == "none");
}

TEST_CASE_METHOD(unchanged_nic, "it knows queues that are leased, from both sides", "[doctor][lease]")
{
    if (auto const why = why_no_leases(); !why.empty())
        SKIP(why);
    leased_queues leased{{3}};
    CHECK_THAT(examine().about("channels").evidence, ContainsSubstring("queue 3: leased to a virtual device"));
    CHECK(examine().about("rss").severity == "none");
    container one{rights::of_nobody_else, [](gpurx::test::child_report& child) {
                      auto const doctor = fmt::format("{} {} 2>&1", GPURX_DOCTOR, leased_interface);
                      auto const found = run(doctor);
                      auto const says = [&](std::string_view part) {
                          child.expect(found.text.find(part) != std::string::npos, found.text.c_str());
                      };
                      child.expect(found.status == 0, found.text.c_str());
                      says("queue 1, which is leased to the interface, can be bound");
                      says("driver netkit can bind memory to its queues");
                      says("are set on the NIC that they are leased from");
                  }};
    one.enter(leased);
    auto const said = one.report();
    INFO(said);
    CHECK(said.empty());
}
