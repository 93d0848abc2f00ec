// SPDX-License-Identifier: Apache-2.0
#include "findings.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <functional>

#include "nic.hpp"

using namespace gpurx::doctor;
using namespace gpurx::doctor::test;
namespace detail = gpurx::detail;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using detail::ethtool::data_split;

namespace {

struct table_row {
    char const* name;
    std::function<void(interface_facts&)> spoil;
    char const* topic;
    severity level;
    char const* evidence;  // a part of it
    char const* command;   // all of it
    std::optional<fix_action> fix = {};
    requirements wanted = {};
};

detail::installed_rule rule_to(std::uint32_t id, unsigned queue)
{
    return {id, std::nullopt, queue};
}

void bind(interface_facts& nic, unsigned queue, std::uint32_t memory)
{
    nic.queues[queue].dmabuf = memory;
}

std::vector<table_row> const rows{
    {"as it should be", [](auto&) {}, "driver", severity::fine, "devmemsim", ""},
    {"no queue management",
     [](auto& nic) {
         nic.bind_probe = refusal{EOPNOTSUPP, "Operation not supported"};
     },
     "driver", severity::blocking, "Operation not supported", ""},
    {"no DMA",
     [](auto& nic) {
         nic.bind_probe = refusal{EOPNOTSUPP, "Device doesn't support DMA"};
     },
     "driver", severity::blocking, "Device doesn't support DMA", ""},
    {"no rights, a driver that can",
     [](auto& nic) {
         nic.bind_probe = refusal{EPERM, "Operation not permitted"};
     },
     "driver", severity::note, "Operation not permitted", ""},
    {"no rights, a driver that cannot",
     [](auto& nic) {
         nic.bind_probe = refusal{EPERM, "Operation not permitted"};
         nic.driver = "e1000e";
     },
     "driver", severity::blocking, "driver e1000e", ""},
    {"a driver that wants its interface up",
     [](auto& nic) {
         nic.bind_probe = refusal{ENODEV, "No such device"};
         nic.up = false;
     },
     "driver", severity::note, "No such device", ""},

    {"gpurxd allows it",
     [](auto& nic) {
         nic.daemon = daemon_facts{true, {EBADF, "no memory"}};
     },
     "gpurxd", severity::fine, "the answer of gpurxd", ""},
    {"gpurxd's policy does not allow it",
     [](auto& nic) {
         nic.daemon = daemon_facts{true, {EACCES, "open dms0 for user 7; add a line for it to /elsewhere/policy"}};
     },
     "gpurxd", severity::note, "/elsewhere/policy", ""},
    {"gpurxd has no place left",
     [](auto& nic) {
         nic.daemon = daemon_facts{true, {EUSERS, "close one"}};
     },
     "gpurxd", severity::note, "close one", ""},
    {"gpurxd does not answer",
     [](auto& nic) {
         nic.daemon = daemon_facts{false, {ECONNREFUSED, "Connection refused"}};
     },
     "gpurxd", severity::note, "Connection refused", "systemctl restart gpurxd.socket gpurxd"},
    {"somebody may not reach gpurxd",
     [](auto& nic) {
         nic.daemon = daemon_facts{false, {EACCES, "Permission denied"}};
     },
     "gpurxd", severity::note, "Permission denied", "systemctl restart gpurxd.socket gpurxd"},

    {"a queue for zcrx", [](auto& nic) { nic.trial = zcrx_trial{.queues = {3}}; }, "zcrx-queue", severity::fine,
     "opened and ended", ""},
    {"a queue for zcrx, and a setting that was left",
     [](auto& nic) { nic.trial = zcrx_trial{.queues = {3}, .notices = {"dms0: ntuple is left on"}}; }, "zcrx-queue",
     severity::note, "ntuple is left on", ""},
    {"no queue for zcrx",
     [](auto& nic) { nic.trial = zcrx_trial{.failure = "register with io_uring dms0 queue 3: File exists"}; },
     "zcrx-queue", severity::note, "File exists", ""},
    {"no trial of zcrx", [](auto&) {}, "zcrx-queue", severity::fine, "", ""},

    {"down", [](auto& nic) { nic.up = false; }, "link", severity::blocking, "IFF_UP", "ip link set dev dms0 up",
     fix_action{fix_action::kind::link_up, 1}},
    {"no carrier", [](auto& nic) { nic.carrier = false; }, "link", severity::degraded, "without carrier", ""},
    {"an alias", [](auto& nic) { nic.alias = "lxc-pod7"; }, "aliases", severity::note, "alias lxc-pod7",
     "ip -details link show dev dms0"},
    {"an alias, and another name",
     [](auto& nic) {
         nic.alias = "lxc-pod7";
         nic.alternative_names = {"enp3s0", "rail0"};
     },
     "aliases", severity::note, "alias lxc-pod7; other names: enp3s0, rail0", "ip -details link show dev dms0"},
    {"other names alone", [](auto& nic) { nic.alternative_names = {"enp3s0"}; }, "aliases", severity::fine, "enp3s0",
     ""},
    {"XDP", [](auto& nic) { nic.xdp = true; }, "xdp", severity::blocking, "XDP", "ip link set dev dms0 xdp off"},

    {"header split off", [](auto& nic) { nic.rings->split = data_split::off; }, "header-split", severity::note,
     "tcp-data-split off", "ethtool -G dms0 tcp-data-split on hds-thresh 0"},
    {"header split off, no threshold",
     [](auto& nic) {
         nic.rings = {data_split::off, std::nullopt, 128};
     },
     "header-split", severity::note, "tcp-data-split off", "ethtool -G dms0 tcp-data-split on"},
    {"a threshold", [](auto& nic) { nic.rings->hds_threshold = 256; }, "header-split", severity::note, "hds-thresh 256",
     "ethtool -G dms0 tcp-data-split on hds-thresh 0"},
    {"no header split",
     [](auto& nic) {
         nic.rings = {data_split::automatic, std::nullopt, 128};
     },
     "header-split", severity::blocking, "reports no tcp-data-split", ""},
    {"no rings", [](auto& nic) { nic.rings.reset(); }, "header-split", severity::blocking, "no ring settings", ""},
    {"mlx5 without hardware GRO",
     [](auto& nic) {
         nic.driver = "mlx5_core";
         nic.hardware_gro->active = false;
     },
     "rx-gro-hw", severity::note, "off", "ethtool -K dms0 rx-gro-hw on"},
    {"mlx5 that can do no hardware GRO",
     [](auto& nic) {
         nic.driver = "mlx5_core";
         nic.hardware_gro = {false, false};
     },
     "rx-gro-hw", severity::blocking, "[fixed]", ""},

    {"ntuple off", [](auto& nic) { nic.ntuple->active = false; }, "ntuple", severity::note, "off",
     "ethtool -K dms0 ntuple on"},
    {"no ntuple",
     [](auto& nic) {
         nic.ntuple = {false, false};
     },
     "ntuple", severity::blocking, "[fixed]", ""},
    {"features unknown", [](auto& nic) { nic.ntuple.reset(); }, "ntuple", severity::blocking, "", ""},

    {"a queue is free", [](auto&) {}, "channels", severity::fine, "4 of at most 16", ""},
    {"others have some queues", [](auto& nic) { bind(nic, 3, 9); }, "channels", severity::fine,
     "queue 3: memory 9 is bound to it", ""},
    {"others have all queues, there may be more",
     [](auto& nic) {
         for (unsigned queue : {1U, 2U, 3U})
             bind(nic, queue, 9);
     },
     "channels", severity::note, "queue 1: memory 9", "ethtool -L dms0 combined 5"},
    {"others have all queues",
     [](auto& nic) {
         nic.channels->combined_max = 4;
         bind(nic, 1, 9);
         nic.queues[2].xsk = true;
         nic.queues[3].io_uring = true;
     },
     "channels", severity::blocking, "queue 1: memory 9 is bound to it; queue 2: an AF_XDP socket; queue 3: io_uring",
     ""},
    {"leased away",
     [](auto& nic) {
         nic.channels = {0, 0, 2, 0, 0, 2};
         nic.queues[1].lease = true;
     },
     "channels", severity::blocking, "queue 1: leased to a virtual device", ""},
    {"one queue", [](auto& nic) { nic.channels = {0, 0, 1, 0, 0, 1}; }, "channels", severity::blocking,
     "1 of at most 1", ""},
    {"a living session has the last queue",
     [](auto& nic) {
         nic.channels->combined_max = 4;
         bind(nic, 1, 9);
         bind(nic, 2, 9);
         nic.sessions.push_back(session(true));
     },
     "channels", severity::blocking, "queue 3: gpurx: trainer, process 77", ""},
    {"a dead session had the last queue",
     [](auto& nic) {
         nic.channels->combined_max = 4;
         bind(nic, 1, 9);
         bind(nic, 2, 9);
         nic.sessions.push_back(session(false));
     },
     "channels", severity::fine, "queue 2: memory 9", ""},

    {"no RSS table", [](auto& nic) { nic.rss_table.clear(); }, "rss", severity::degraded, "no indirection table", ""},
    {"a queue that somebody keeps out of RSS",
     [](auto& nic) {
         nic.rss_table = {0, 1, 2, 0};
     },
     "rss", severity::note, "0 1 2 0", "ethtool -X dms0 default"},
    {"a queue that is out of RSS as it is leased",
     [](auto& nic) {
         nic.rss_table = {0, 1, 2, 0};
         nic.queues[3].lease = true;
     },
     "rss", severity::fine, "", ""},
    {"which a session leaves alone",
     [](auto& nic) {
         nic.rss_table = {0, 1, 2, 0};
     },
     "channels", severity::fine, "queue 3: kept out of RSS by another program", ""},
    {"every queue but the first is kept out of RSS",
     [](auto& nic) {
         nic.rss_table = {0, 0, 0, 0};
         nic.channels->combined_max = 4;
     },
     "channels", severity::blocking, "queue 1: kept out of RSS", ""},
    {"a queue that gpurx keeps out of RSS",
     [](auto& nic) {
         nic.rss_table = {0, 1, 2, 0};
         nic.session_changes = {{detail::setting::rss_table, {0, 1, 2, 3}, {0, 1, 2, 0}}};
         nic.sessions.push_back(session(true));
     },
     "rss", severity::fine, "", ""},
    {"a context of others",
     [](auto& nic) {
         nic.rss_contexts = {{1, {0, 3}}, {2, {0, 1}}};
     },
     "rss-context", severity::degraded, "0 3", "ethtool -X dms0 context 1 delete"},
    {"a rule of others to the queue", [](auto& nic) { nic.rules = {rule_to(7, 3)}; }, "rules", severity::degraded,
     "another form", "ethtool -N dms0 delete 7"},
    {"a rule of others elsewhere", [](auto& nic) { nic.rules = {rule_to(7, 1)}; }, "rules", severity::note, "rule 7",
     "ethtool -n dms0"},

    {"a ring that fits", [](auto&) {}, "rx-ring", severity::fine, "512 KiB of 64 MiB", ""},
    {"a ring that takes a third",
     [](auto& nic) { nic.rings->rx_frames = 4096; },
     "rx-ring",
     severity::degraded,
     "16 MiB of 48 MiB",
     "ethtool -G dms0 rx 2048",
     fix_action{fix_action::kind::rx_ring, 2048},
     {48 << 20}},
    {"a ring that takes all",
     [](auto& nic) { nic.rings->rx_frames = 4096; },
     "rx-ring",
     severity::blocking,
     "16 MiB of 16 MiB",
     "ethtool -G dms0 rx 1024",
     fix_action{fix_action::kind::rx_ring, 1024},
     {16 << 20}},
    {"a ring that takes much while others use the NIC",
     [](auto& nic) {
         nic.rings->rx_frames = 4096;
         bind(nic, 3, 9);
     },
     "rx-ring",
     severity::blocking,
     "16 MiB of 16 MiB",
     "ethtool -G dms0 rx 1024",
     {},
     {16 << 20}},
    {"a memory that no ring fits",
     [](auto&) {},
     "rx-ring",
     severity::blocking,
     "512 KiB of 256 KiB",
     "",
     {},
     {256 << 10}},
    {"jumbo frames",
     [](auto& nic) {
         nic.rings->rx_frames = 1024;
         nic.mtu = 9000;
     },
     "rx-ring",
     severity::degraded,
     "16 MiB of 40 MiB",
     "ethtool -G dms0 rx 512",
     fix_action{fix_action::kind::rx_ring, 512},
     {40 << 20}},
    {"no ring size", [](auto& nic) { nic.rings->rx_frames.reset(); }, "rx-ring", severity::note, "ethtool -g", ""},

    {"a living session", [](auto& nic) { nic.sessions.push_back(session(true)); }, "sessions", severity::note,
     "trainer, process 77: queues 3, 0 rules", ""},
    {"a session that cannot be seen", [](auto& nic) { nic.sessions.push_back(session(std::nullopt)); }, "sessions",
     severity::note, "process 77: queues 3", ""},
    {"a killed session", [](auto& nic) { nic.sessions.push_back(session(false)); }, "leftovers", severity::degraded,
     "process 77 has ended", "gpurx-doctor dms0 --fix", fix_action{fix_action::kind::recover, 0}},
    {"settings that nobody put back",
     [](auto& nic) {
         nic.session_changes = {{detail::setting::ntuple_filters, {0}, {1}}};
     },
     "leftovers", severity::degraded, "ntuple-filters off -> on", "gpurx-doctor dms0 --fix",
     fix_action{fix_action::kind::recover, 0}},
    {"fixed before",
     [](auto& nic) {
         nic.own_changes = {{detail::setting::rx_ring, {4096}, {512}}};
     },
     "fixed", severity::note, "rx-ring 4096 frames -> 512 frames", "gpurx-doctor dms0 --undo"},
    {"journals that cannot be read", [](auto& nic) { nic.journal_error = "/run/gpurx: Permission denied"; }, "journal",
     severity::note, "Permission denied", ""},
    {"no answers at all",
     [](auto& nic) {
         nic.settings = {ENOENT, "no family"};
     },
     "settings", severity::blocking, "no family", ""},
};

pci_facts device(std::string address, std::vector<std::string> bridges)
{
    return {std::move(address), std::move(bridges), "identity", {}};
}

gpu_facts good_gpu()
{
    gpu_facts gpu;
    gpu.name = "H100";
    gpu.exports = true;
    gpu.pci = device("0000:04:00.0", {"0000:00:01.0", "0000:02:02.0"});
    gpu.bar1 = std::uint64_t{128} << 30;
    return gpu;
}

}  // namespace

TEST_CASE("without rights a refusal of gpurxd is blocking")
{
    auto machine = good_machine();
    machine.process.net_admin = false;
    machine.process.user = 1000;
    machine.process.daemon = "/run/gpurxd.sock";
    auto nic = good_nic();
    nic.daemon = daemon_facts{true, {EACCES, "open dms0 for user 1000"}};
    facts seen{machine, {nic}, std::nullopt, {}};
    auto const refused = diagnose(seen, nic);
    CHECK(refused.outcome == verdict::not_possible);
    auto const found = about(refused.findings, "gpurxd");
    CHECK(found.level == severity::blocking);
    CHECK_THAT(found.what, ContainsSubstring("add the line 'allow user 1000 interface dms0'"));
    nic.daemon->less_would_do = true;
    nic.daemon->said.text = "open dms0 with 64 MiB of memory (16 MiB allowed)";
    auto const too_much = about(diagnose(seen, nic).findings, "gpurxd");
    CHECK(too_much.level == severity::blocking);
    CHECK(
        too_much.what ==
        "gpurxd's policy allows user 1000 less than 64 MiB of memory on dms0: use less (--memory), or raise the limit "
        "memory in the user's line");
    CHECK(too_much.evidence == nic.daemon->said.text);
    CHECK(too_much.command.empty());
    nic.daemon->said.error = EBADF;
    auto const allowed = about(diagnose(seen, nic).findings, "gpurxd");
    CHECK(allowed.level == severity::fine);
    CHECK(allowed.what == "gpurxd would set up queues of dms0 for user 1000, with 64 MiB of memory");
    CHECK(about(diagnose(seen, nic).findings, "rights").level == severity::fine);
    nic.daemon.reset();
    CHECK(about(diagnose(seen, nic).findings, "gpurxd").topic.empty());
}

TEST_CASE("the checks of an interface find each fault")
{
    for (auto const& row : rows) {
        DYNAMIC_SECTION(row.name)
        {
            auto nic = good_nic();
            row.spoil(nic);
            auto const found = about(check_interface(nic, good_machine(), nullptr, row.wanted), row.topic);
            CHECK(to_string(found.level) == to_string(row.level));
            CHECK_THAT(found.evidence, ContainsSubstring(row.evidence));
            CHECK(found.command == row.command);
            CHECK(found.fix == row.fix);
        }
    }
}

TEST_CASE("a good machine with a good NIC is ready")
{
    auto const seen = good_facts();
    auto const found = diagnose(seen, seen.interfaces.front());
    CHECK(found.outcome == verdict::ready);
    for (auto const& one : found.findings) {
        INFO(one.topic << ": " << one.what);
        CHECK(one.level == severity::fine);
    }
}

TEST_CASE("a device that is not a NIC has one finding")
{
    interface_facts veth;
    veth.name = "veth0";
    veth.driver = "veth";
    veth.bind_probe = refusal{EOPNOTSUPP, "Operation not supported"};
    auto const found = check_interface(veth, good_machine(), nullptr, {});
    REQUIRE(found.size() == 1);
    CHECK_THAT(found.front().what, ContainsSubstring("driver veth cannot bind memory"));
}

TEST_CASE("an interface with leased queues has findings about its own side")
{
    interface_facts netkit;
    netkit.name = "nk0";
    netkit.driver = "netkit";
    netkit.up = true;
    netkit.carrier = true;
    netkit.bind_probe = refusal{EBADF, "Bad file descriptor"};
    netkit.queues = {{.id = 0, .dmabuf = {}}, {.id = 1, .dmabuf = {}}};
    auto const all = [&netkit] { return check_interface(netkit, good_machine(), nullptr, {}); };

    SECTION("a queue is free")
    {
        CHECK(about(all(), "leases").level == severity::fine);
        CHECK_THAT(about(all(), "leases").what, ContainsSubstring("queue 1"));
        CHECK(about(all(), "driver").level == severity::fine);
        CHECK(about(all(), "lessor").level == severity::note);
        CHECK(judge(all()) == verdict::ready);
    }
    SECTION("a session of it needs no directory for journals")
    {
        auto seen = good_facts();
        seen.machine.process.state_error = "/run/gpurx: No such file or directory";
        CHECK(diagnose(seen, seen.interfaces.front()).outcome == verdict::not_possible);
        CHECK(diagnose(seen, netkit).outcome == verdict::ready);
    }
    SECTION("it is in use")
    {
        netkit.queues[1].dmabuf = 9;
        CHECK(about(all(), "leases").level == severity::blocking);
        CHECK_THAT(about(all(), "leases").evidence, ContainsSubstring("queue 1: memory of binding 9"));
    }
    SECTION("nothing is leased to it")
    {
        netkit.queues.pop_back();
        netkit.bind_probe = refusal{EOPNOTSUPP, "Device doesn't support DMA"};
        auto const found = all();
        CHECK(found.size() == 2);
        CHECK(about(found, "leases").level == severity::blocking);
    }
    SECTION("it is down, and shows no queues")
    {
        netkit.up = false;
        netkit.queues.clear();
        auto const found = all();
        REQUIRE(found.size() == 1);
        CHECK(found.front().topic == "link");
        CHECK(found.front().level == severity::blocking);
    }
}

TEST_CASE("the best interface is the one that is nearest to ready")
{
    auto seen = good_facts();
    interface_facts loopback;
    loopback.name = "lo";
    loopback.loopback = true;
    loopback.up = true;
    loopback.bind_probe = refusal{EOPNOTSUPP, "Operation not supported"};
    interface_facts ether = loopback;
    ether.name = "eth0";
    ether.loopback = false;
    auto ready = good_nic();
    ready.name = "dms1";
    seen.interfaces[0].carrier = false;
    seen.interfaces[0].rings.reset();

    seen.interfaces = {loopback, ether, seen.interfaces[0], ready};
    CHECK(best_interface(seen)->name == "dms1");
    seen.interfaces.pop_back();
    CHECK(best_interface(seen)->name == "dms0");
    seen.interfaces.pop_back();
    CHECK(best_interface(seen)->name == "eth0");
    seen.interfaces.clear();
    CHECK(best_interface(seen) == nullptr);
}

TEST_CASE("the way between a NIC and a GPU")
{
    auto seen = good_facts();
    auto& nic = seen.interfaces.front();
    nic.pci = device("0000:03:00.0", {"0000:00:01.0", "0000:02:01.0"});
    seen.gpu = good_gpu();
    auto const said = [&seen](char const* topic) {
        return about(diagnose(seen, seen.interfaces.front()).findings, topic);
    };
    CHECK(said("pcie").level == severity::fine);
    CHECK(said("iommu").level == severity::fine);
    CHECK(diagnose(seen, nic).outcome == verdict::ready);

    SECTION("access control on a bridge between them")
    {
        nic.pci->turns = {{"0000:00:01.0", true}, {"0000:02:01.0", true}};
        CHECK(said("pcie").level == severity::degraded);
        // The bridge above both does not matter.
        CHECK(said("pcie").command == "setpci -s 0000:02:01.0 ECAP_ACS+6.w=0:c");
    }
    SECTION("no bridge in common")
    {
        nic.pci->bridges = {"0000:80:01.0"};
        CHECK(said("pcie").level == severity::degraded);
        CHECK_THAT(said("pcie").what, ContainsSubstring("root complex"));
    }
    SECTION("an IOMMU")
    {
        nic.pci->iommu = "DMA-FQ";
        CHECK(said("iommu").level == severity::degraded);
        CHECK_THAT(said("iommu").what, ContainsSubstring("iommu=pt"));
    }
    SECTION("NUMA nodes that are not told, the same, and different")
    {
        CHECK(said("numa").topic.empty());
        nic.pci->numa_node = 1;
        CHECK(said("numa").topic.empty());
        seen.gpu->pci->numa_node = 1;
        CHECK(said("numa").level == severity::fine);
        CHECK(said("numa").what == "NIC and GPU are on NUMA node 1");
        CHECK(said("numa").evidence == "NIC on node 1, GPU 0 on node 1");
        CHECK(diagnose(seen, nic).outcome == verdict::ready);
        seen.gpu->pci->numa_node = 0;
        CHECK(said("numa").level == severity::degraded);
        CHECK_THAT(said("numa").what, StartsWith("NIC on NUMA node 1, GPU on node 0: "));
        CHECK(said("numa").evidence == "NIC on node 1, GPU 0 on node 0");
        CHECK(diagnose(seen, nic).outcome == verdict::degraded);
    }
    SECTION("a NIC that is on no PCI bus")
    {
        nic.pci.reset();
        CHECK(said("pcie").level == severity::note);
    }
}

TEST_CASE("a GPU that cannot be used, does not export, or has a small window")
{
    auto gpu = good_gpu();
    CHECK(judge(check_gpu(gpu, {})) == verdict::ready);
    gpu.bar1 = 256 << 20;
    CHECK(judge(check_gpu(gpu, {std::uint64_t{1} << 30})) == verdict::not_possible);
    CHECK(judge(check_gpu(gpu, {})) == verdict::ready);
    gpu.exports = false;
    CHECK(about(check_gpu(gpu, {}), "gpu").level == severity::blocking);
    gpu.error = "no driver";
    CHECK(about(check_gpu(gpu, {}), "gpu").evidence == "no driver");
}
