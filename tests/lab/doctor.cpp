// SPDX-License-Identifier: Apache-2.0
//
// gpurx-doctor on dms0, in the states that devmemsim can show. What it says to do is done, word for word, and it is
// asked again.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/syscalls.hpp"
#include "base/zcrx_support.hpp"
#include "bed.hpp"
#include "bpf.hpp"
#include "container.hpp"
#include "findings.hpp"
#include "memory/memory_state.hpp"
#include "nic.hpp"
#include "observe.hpp"

using namespace gpurx::lab;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::Matches;
namespace detail = gpurx::detail;
namespace doctor = gpurx::doctor;

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
void check_fixed(std::string const& spoil, std::string_view topic, std::string_view severity, int status)
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

// What --fix did is what --dry-run had announced.
void check_was_announced(std::string const& done, std::string const& announced)
{
    INFO(announced);
    static std::regex const removal{"done: dms0: (rule .*) removed"};
    static std::regex const setting{"done: dms0: (\\S+) restored to (.*)"};
    static std::regex const obituary{"done: dms0: process .* has ended.*"};
    int changes = 0;
    std::istringstream lines{done};
    for (std::string line; std::getline(lines, line);) {
        CAPTURE(line);
        std::smatch part;
        if (std::regex_match(line, part, removal))
            CHECK_THAT(announced, ContainsSubstring(fmt::format("# {} is removed\n", part.str(1))));
        else if (std::regex_match(line, part, setting))
            CHECK_THAT(announced, ContainsSubstring(fmt::format("# {}: ", part.str(1))) &&
                                      ContainsSubstring(fmt::format(" -> {}\n", part.str(2))));
        else
            CHECK(std::regex_match(line, obituary));
        changes += part.empty() ? 0 : 1;
    }
    CHECK(changes >= 2);
}

// An XDP program that passes everything, on dms0 while this lives. Empty: the kernel has no BPF.
class xdp_program {
  public:
    xdp_program()
    {
        constexpr std::array<bpf_insn, 2> pass{bpf_insn{BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_PASS},
                                               bpf_insn{BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
        constexpr char license[] = "GPL";
        bpf_attr load{};
        load.prog_type = BPF_PROG_TYPE_XDP;
        load.insns = reinterpret_cast<std::uintptr_t>(pass.data());
        load.insn_cnt = static_cast<std::uint32_t>(pass.size());
        load.license = reinterpret_cast<std::uintptr_t>(license);
        load.prog_flags = BPF_F_XDP_HAS_FRAGS;  // one that does not is refused beside header split
        auto const program = bpf(BPF_PROG_LOAD, load);
        if (!program) {
            REQUIRE(errno == ENOSYS);
            return;
        }
        bpf_attr link{};
        link.link_create.prog_fd = static_cast<std::uint32_t>(program.get());
        link.link_create.target_ifindex = detail::kernel_nic{near_interface}.index();
        link.link_create.attach_type = BPF_XDP;
        link_ = bpf(BPF_LINK_CREATE, link);
        INFO(std::strerror(errno));
        REQUIRE(link_);
    }
    [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(link_); }

  private:
    detail::unique_fd link_;
};

// What devmemsim can be set to, as far as the doctor looks at it.
struct nic_state {
    bool split;
    unsigned threshold;
    bool ntuple;
    unsigned frames;
    unsigned mtu;
    unsigned channels;
    bool xdp;
};

constexpr std::size_t matrix_memory = 12 * mebibyte;

// The ring takes a quarter of the memory at most, or leaves flows something, or nothing.
std::string ring_severity(nic_state const& set)
{
    auto const held = set.frames * (set.mtu > 3584 ? 16384UL : 4096UL);
    if (held <= matrix_memory / 4)
        return "ok";
    return held < matrix_memory ? "degraded" : "blocking";
}

// In this process: one of its own for each state would take minutes of an emulated guest.
doctor::diagnosis diagnosis_now()
{
    auto const seen = doctor::observe({.interface = near_interface,
                                       .gpu = std::nullopt,
                                       .wanted = {matrix_memory},
                                       .state_directory = "/run/gpurx",
                                       .own_directory = "/run/gpurx-doctor"});
    return doctor::diagnose(seen, seen.interfaces.front());
}

// Each finding by its rule, and the verdict by the worst. Returns the verdict.
doctor::verdict check_diagnosis(nic_state const& set)
{
    CAPTURE(set.split, set.threshold, set.ntuple, set.frames, set.mtu, set.channels, set.xdp);
    auto const found = diagnosis_now();
    auto const check = [&found](std::string_view topic, std::string_view severity) {
        CAPTURE(topic);
        auto const one = std::ranges::find(found.findings, topic, &doctor::finding::topic);
        REQUIRE(one != found.findings.end());
        INFO(one->what << ": " << one->evidence);
        CHECK(to_string(one->level) == severity);
        // What is not as it should be says what mends it.
        CHECK(one->command.empty() == (severity == "ok"));
    };
    auto const ring = ring_severity(set);
    check("driver", "ok");
    check("link", "ok");
    check("header-split", set.split && set.threshold == 0 ? "ok" : "note");
    check("ntuple", set.ntuple ? "ok" : "note");
    check("channels", set.channels > 1 ? "ok" : "note");
    check("xdp", set.xdp ? "blocking" : "ok");
    check("rx-ring", ring);
    CHECK(to_string(found.outcome) == (set.xdp || ring == "blocking" ? "not possible"
                                       : ring == "degraded"          ? "degraded"
                                                                     : "ready"));
    return found.outcome;
}

}  // namespace

TEST_CASE_METHOD(unchanged_nic, "the doctor finds dms0 ready, and names the kernel's tokens", "[smoke][doctor]")
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

TEST_CASE_METHOD(unchanged_nic, "a setting that a session makes by itself is no fault", "[smoke][doctor]")
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

TEST_CASE_METHOD(unchanged_nic, "its commands fix the faults that they are for", "[doctor]")
{
    check_fixed("ethtool -X dms0 equal 3", "rss", "note", 0);
    check_fixed("ethtool -N dms0 flow-type tcp4 dst-port 7777 action 3", "rules", "degraded", 1);
    check_fixed("ethtool -X dms0 context new start 2 equal 2", "rss-context", "degraded", 1);
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

TEST_CASE_METHOD(unchanged_nic, "an interface that is down is set up, and undone", "[smoke][doctor]")
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

TEST_CASE_METHOD(unchanged_nic, "it names the users of the queues", "[doctor]")
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
            CHECK_THAT(
                found.about("channels").evidence,
                ContainsSubstring(fmt::format("queue {}: memory {} is bound to it", last[0], bound->id().value())));
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

TEST_CASE_METHOD(unchanged_nic, "without rights it reports that, and everything visible", "[smoke][doctor]")
{
    auto const found = examine({}, "setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all");
    CHECK(found.status == 2);
    CHECK(found.about("rights").severity == "blocking");
    CHECK(found.about("driver").severity == "note");
    CHECK(found.about("header-split").severity == "ok");
    CHECK(found.about("channels").severity == "ok");
}

TEST_CASE_METHOD(unchanged_nic, "it takes a queue for io_uring and gives it back, or names the obstacle",
                 "[smoke][doctor]")
{
    if (auto const why = detail::describe(detail::observe_zcrx()); !why.empty())
        SKIP("transport zcrx: " << why);
    auto const found = examine("--try-zcrx");
    CHECK(found.status == 0);
    CHECK(found.about("zcrx").severity == "ok");
    CHECK_THAT(found.about("zcrx").evidence, ContainsSubstring("IORING_REGISTER_QUERY: register flags"));
    CHECK(found.about("zcrx-queue").severity == "ok");
    CHECK(examine().about("zcrx-queue").severity == "none");
    {
        auto const most = detail::kernel_nic{near_interface}.channels().combined_max;
        auto const session =
            open_session(64 * mebibyte, {.rx_queues = most - 1, .transport = gpurx::transport::devmem});
        auto const busy = examine("--try-zcrx").about("zcrx-queue");
        CHECK(busy.severity == "note");
        CHECK_THAT(busy.evidence, ContainsSubstring("used by the gpurx session of process"));
    }
    run_command("sysctl -qw kernel.io_uring_disabled=2");
    auto const disabled = examine().about("zcrx");
    CHECK(disabled.severity == "note");
    CHECK_THAT(disabled.evidence, ContainsSubstring("kernel.io_uring_disabled is 2"));
    run_command(disabled.command);
    CHECK(examine().about("zcrx").severity == "ok");
    auto const without = examine({}, "setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all");
    CHECK(without.about("zcrx").severity == "note");
    CHECK(without.about("zcrx").command == "setcap cap_net_admin+ep PROGRAM");
}

TEST_CASE_METHOD(unchanged_nic, "it undoes the changes of a killed process", "[smoke][doctor]")
{
    // Killed when the doctor sees its session, with its rule.
    auto const script = fmt::format(
        "{0} --interface {2} --transport devmem --memory-size 8MiB --listen 10.77.0.1:9555 >/dev/null 2>&1 & "
        "for i in $(seq 300); do {1} {2} --json | grep -q 'process [0-9]*: queues .*, 1 rules' && break; sleep 0.2; "
        "done; "
        "kill -9 $!; wait $!; true",
        GPURX_RECEIVE_FILE, GPURX_DOCTOR, near_interface);
    run_command(script + " 2>/dev/null");
    auto const found = examine();
    CHECK(found.status == 1);
    CHECK(found.about("leftovers").severity == "degraded");
    CHECK_THAT(found.about("leftovers").evidence, ContainsSubstring("has ended"));
    CHECK(found.about("leftovers").command == "gpurx-doctor dms0 --fix");
    auto const dry = run(fmt::format("{} {} --fix --dry-run", GPURX_DOCTOR, near_interface));
    fmt::print("{}", dry.text);
    CHECK_THAT(dry.text, Matches("# rule \\d+ \\(tcp4 \\* -> 10\\.77\\.0\\.1:9555\\) is removed\n(# .+: .+ -> .+\n)+"));
    CHECK(examine().about("leftovers").severity == "degraded");
    auto const fixed = run(fmt::format("{} {} --fix 2>&1 >/dev/null", GPURX_DOCTOR, near_interface));
    CHECK(fixed.status == 0);
    check_was_announced(fixed.text, dry.text);
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
                      says("queue 1, leased to the interface, can be bound");
                      says("driver netkit can bind memory to its queues");
                      says("the leasing NIC has the settings of header split");
                  }};
    one.enter(leased);
    auto const said = one.report();
    INFO(said);
    CHECK(said.empty());
}

// Sets back what the states change, also if a check ends the test.
class restored_states {
  public:
    ~restored_states()
    {
        (void)output_of(fmt::format("ethtool -L dms0 combined {}", channels_));
        nic_.set_hds_threshold(before_.hds_threshold.value());
        nic_.set_data_split(detail::ethtool::data_split::automatic);
        nic_.set_feature(detail::ethtool::feature::ntuple_filters, true);
        nic_.set_rx_ring(before_.rx_frames.value());
        (void)output_of("ip link set dms0 mtu 1500");
    }

  private:
    detail::kernel_nic nic_{near_interface};
    detail::ethtool::rings before_ = nic_.rings();
    unsigned channels_ = nic_.channels().combined;
};

TEST_CASE_METHOD(unchanged_nic,
                 "each finding follows its rule for any setting of the NIC, and the status is the worst finding",
                 "[doctor][matrix]")
{
    detail::kernel_nic nic{near_interface};
    auto const channels = nic.channels().combined;
    restored_states const restored;
    unsigned looked = 0;
    std::set<doctor::verdict> seen;
    auto const look = [&](nic_state const& set) {
        ++looked;
        auto const outcome = check_diagnosis(set);
        if (seen.insert(outcome).second)
            CHECK(examine("--memory 12MiB").status == static_cast<int>(outcome));
    };
    for (unsigned const mtu : {1500U, 9000U}) {
        run_command(fmt::format("ip link set dms0 mtu {}", mtu));
        for (unsigned const ring : {128U, 1024U}) {
            nic.set_rx_ring(ring);
            for (unsigned const queues : {1U, channels}) {
                run_command(fmt::format("ethtool -L dms0 combined {}", queues));
                for (auto const& [split, threshold] : {std::pair{true, 0U}, {true, 256U}, {false, 0U}}) {
                    nic.set_data_split(split ? detail::ethtool::data_split::on : detail::ethtool::data_split::off);
                    nic.set_hds_threshold(threshold);
                    for (bool const ntuple : {true, false}) {
                        nic.set_feature(detail::ethtool::feature::ntuple_filters, ntuple);
                        look({split, threshold, ntuple, ring, mtu, queues, false});
                        if (xdp_program const program; program)
                            look({split, threshold, ntuple, ring, mtu, queues, true});
                    }
                }
            }
        }
    }
    fmt::print("{} states of dms0 were looked at{}\n", looked, looked == 48 ? ", none with XDP: no BPF here" : "");
    CHECK((looked == 96 || looked == 48));
    CHECK(seen.size() == 3);
}

TEST_CASE_METHOD(unchanged_nic, "an alias and another name of the interface are seen", "[doctor]")
{
    CHECK(examine().about("aliases").severity == "none");
    run_command("ip link property add dev dms0 altname rail0");
    CHECK(examine().about("aliases").severity == "ok");
    run_command("ip link set dev dms0 alias 'cluster network'");
    auto const found = examine();
    CHECK(found.status == 0);
    CHECK(found.about("aliases").severity == "note");
    CHECK(found.about("aliases").evidence == "alias cluster network; other names: rail0");
    run_command("ip link set dev dms0 alias ''");
    run_command("ip link property del dev dms0 altname rail0");
    CHECK(examine().about("aliases").severity == "none");
}
