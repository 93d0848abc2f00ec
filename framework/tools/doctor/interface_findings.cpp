// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "base/byte_size.hpp"
#include "findings.hpp"
#include "lease/leased_nic.hpp"
#include "lease/queue_plan.hpp"
#include "lease/settings.hpp"
#include "memory/topology.hpp"
#include "pci.hpp"
#include "session/budget.hpp"

namespace gpurx::doctor {

namespace {

using detail::size_text;
using detail::ethtool::data_split;

// In Linux 7.3; netkit through a queue that is leased to it.
constexpr std::array<std::string_view, 6> drivers_with_queue_management{"mlx5_core", "bnxt_en",   "gve",
                                                                        "fbnic",     "devmemsim", "netkit"};

bool is_known(std::string const& driver)
{
    return std::ranges::find(drivers_with_queue_management, driver) != drivers_with_queue_management.end();
}

std::string name_of_driver(interface_facts const& nic)
{
    if (nic.loopback)
        return "the loopback device";
    if (!nic.driver.empty())
        return "driver " + nic.driver;
    return nic.kind.empty() ? "a device without a driver" : "a device of kind " + nic.kind;
}

finding look_at_driver(interface_facts const& nic)
{
    constexpr char topic[] = "driver";
    auto const name = name_of_driver(nic);
    auto const probe = nic.bind_probe.value_or(refusal{});
    auto const evidence = probe.error != 0 ? fmt::format("{}; bind-rx answers: {}", name, probe.text) : name;
    if (probe.error == EBADF)
        return {.topic = topic, .what = fmt::format("{} can bind memory to its queues", name), .evidence = evidence};
    if (probe.error == EPERM && is_known(nic.driver)) {
        return {.level = severity::note,
                .topic = topic,
                .what = fmt::format("{} is one of those that can bind memory to their queues; whether it can with "
                                    "this NIC only CAP_NET_ADMIN can ask",
                                    name),
                .evidence = evidence};
    }
    if ((probe.error == ENODEV || probe.error == ENETDOWN || probe.error == EAGAIN) && is_known(nic.driver) && !nic.up)
        return {.level = severity::note,
                .topic = topic,
                .what = fmt::format("{} binds memory to its queues only while the interface is up", name),
                .evidence = evidence};
    return {.level = severity::blocking,
            .topic = topic,
            .what = fmt::format(
                "{} cannot bind memory to its queues{}: use a NIC of {}", name,
                is_known(nic.driver) ? " in this state, or not on this NIC" : "",
                fmt::join(drivers_with_queue_management.begin(), drivers_with_queue_management.begin() + 4, ", ")),
            .evidence = evidence};
}

finding look_at_link(interface_facts const& nic)
{
    constexpr char topic[] = "link";
    if (!nic.up)
        return {.level = severity::blocking,
                .topic = topic,
                .what = "the interface is down",
                .evidence = "no IFF_UP",
                .command = fmt::format("ip link set dev {} up", nic.name),
                .mend = mending{mending::kind::link_up, 1}};
    if (!nic.carrier)
        return {.level = severity::degraded,
                .topic = topic,
                .what = "nothing is at the other end of the cable",
                .evidence = "up, without carrier"};
    return {.topic = topic, .what = "the interface is up", .evidence = fmt::format("MTU {}", nic.mtu)};
}

finding look_at_header_split(interface_facts const& nic)
{
    constexpr char topic[] = "header-split";
    if (!nic.rings || (nic.rings->split == data_split::automatic && !nic.rings->hds_threshold))
        return {.level = severity::blocking,
                .topic = topic,
                .what = "the NIC does not split headers from payload",
                .evidence = nic.rings ? "the driver reports no tcp-data-split" : "the driver has no ring settings"};
    auto evidence = fmt::format("tcp-data-split {}", nic.rings->split == data_split::on    ? "on"
                                                     : nic.rings->split == data_split::off ? "off"
                                                                                           : "auto");
    auto const threshold = nic.rings->hds_threshold.value_or(0);
    if (nic.rings->hds_threshold)
        evidence += fmt::format(", hds-thresh {}", threshold);
    if (nic.rings->split == data_split::on && threshold == 0)
        return {.topic = topic, .what = "headers are split from payload", .evidence = std::move(evidence)};
    return {.level = severity::note,
            .topic = topic,
            .what = "headers are not split from the payload of all packets: a session turns that on while it lasts",
            .evidence = std::move(evidence),
            .command = nic.rings->hds_threshold ? fmt::format("ethtool -G {} tcp-data-split on hds-thresh 0", nic.name)
                                                : fmt::format("ethtool -G {} tcp-data-split on", nic.name)};
}

// Of the drivers that can, mlx5 alone splits headers only together with it.
std::optional<finding> look_at_hardware_gro(interface_facts const& nic)
{
    if (nic.driver != "mlx5_core" || !nic.hardware_gro || nic.hardware_gro->active)
        return std::nullopt;
    bool const can = nic.hardware_gro->changeable;
    return finding{.level = can ? severity::note : severity::blocking,
                   .topic = "rx-gro-hw",
                   .what = can ? "this driver splits headers only with hardware GRO: a session turns it on"
                               : "this driver splits headers only with hardware GRO, which cannot be turned on",
                   .evidence = can ? "rx-gro-hw off" : "rx-gro-hw off [fixed]",
                   .command = can ? fmt::format("ethtool -K {} rx-gro-hw on", nic.name) : std::string{}};
}

finding look_at_steering(interface_facts const& nic)
{
    constexpr char topic[] = "ntuple";
    auto const state = nic.ntuple.value_or(detail::ethtool::feature_state{});
    if (!state.active && !state.changeable)
        return {.level = severity::blocking,
                .topic = topic,
                .what = "the NIC cannot steer flows to queues",
                .evidence = "rx-ntuple-filter off [fixed]"};
    if (!state.active)
        return {.level = severity::note,
                .topic = topic,
                .what = "flow steering is off: a session turns it on while it lasts",
                .evidence = "rx-ntuple-filter off",
                .command = fmt::format("ethtool -K {} ntuple on", nic.name)};
    return {.topic = topic, .what = "the NIC steers flows to queues", .evidence = "rx-ntuple-filter on"};
}

finding look_at_xdp(interface_facts const& nic)
{
    if (!nic.xdp)
        return {.topic = "xdp", .what = "no XDP program is in the way", .evidence = "none attached"};
    return {.level = severity::blocking,
            .topic = "xdp",
            .what = "an XDP program is attached: a NIC has either that or device memory",
            .evidence = "IFLA_XDP",
            .command = fmt::format("ip link set dev {} xdp off", nic.name)};
}

std::string describe(session_facts const& session)
{
    auto const pid = session.owner.key.pid;
    return session.program.empty() ? fmt::format("process {}", pid)
                                   : fmt::format("{}, process {}", session.program, pid);
}

unsigned queues_of(interface_facts const& nic)
{
    return nic.channels ? nic.channels->rx_queues() : static_cast<unsigned>(nic.queues.size());
}

// Who has each queue that a session cannot have.
std::map<unsigned, std::string> users_of_queues(interface_facts const& nic)
{
    std::map<unsigned, std::string> users;
    for (auto const& queue : nic.queues) {
        if (queue.dmabuf)
            users[queue.id] = fmt::format("memory {} is bound to it", *queue.dmabuf);
        else if (queue.io_uring)
            users[queue.id] = "io_uring zero copy";
        else if (queue.xsk)
            users[queue.id] = "an AF_XDP socket";
        else if (queue.lease)
            users[queue.id] = "leased to a virtual device";
    }
    for (auto const& session : nic.sessions) {
        if (session.alive == false)
            continue;  // the next session, or --fix, takes them back
        for (unsigned const queue : session.owner.queues)
            users[queue] = "gpurx: " + describe(session);
    }
    for (unsigned const queue : detail::reserved_queues(nic.session_changes, nic.rss_table, queues_of(nic)))
        users.emplace(queue, "kept out of RSS by somebody else");
    return users;
}

unsigned most_queues_of(interface_facts const& nic)
{
    auto const now = queues_of(nic);
    return nic.channels ? std::max(detail::most_rx_queues(*nic.channels), now) : now;
}

// That a session would choose.
std::optional<detail::queue_plan> plan_for(interface_facts const& nic)
{
    std::set<unsigned> taken;
    for (auto const& [queue, user] : users_of_queues(nic))
        taken.insert(queue);
    return detail::plan_queues(queues_of(nic), most_queues_of(nic), taken, 1);
}

finding look_at_channels(interface_facts const& nic)
{
    constexpr char topic[] = "channels";
    auto evidence = fmt::format("{} of at most {} RX queues", queues_of(nic), most_queues_of(nic));
    auto const users = users_of_queues(nic);
    for (auto const& [queue, user] : users)
        fmt::format_to(std::back_inserter(evidence), "; queue {}: {}", queue, user);
    auto const plan = plan_for(nic);
    if (!plan && users.empty())
        return {.level = severity::blocking,
                .topic = topic,
                .what = "there is no queue to set aside: queue 0 is for all other traffic",
                .evidence = std::move(evidence)};
    if (!plan)
        return {.level = severity::blocking,
                .topic = topic,
                .what = "every queue that could be set aside is in use: end one of those that use them",
                .evidence = std::move(evidence)};
    if (plan->rx_queues > queues_of(nic)) {
        auto const after =
            nic.channels ? detail::with_rx_queues(*nic.channels, plan->rx_queues) : detail::ethtool::channels{};
        return {.level = severity::note,
                .topic = topic,
                .what = fmt::format("no queue is free: a session raises the channels and takes queue {}",
                                    plan->queues.front()),
                .evidence = std::move(evidence),
                .command = fmt::format("ethtool -L {} {} {}", nic.name, after.combined_max != 0 ? "combined" : "rx",
                                       after.combined_max != 0 ? after.combined : after.rx)};
    }
    return {.topic = topic,
            .what = fmt::format("queue {} can be set aside", plan->queues.front()),
            .evidence = std::move(evidence)};
}

bool is_in(std::vector<std::uint32_t> const& table, unsigned queue)
{
    return std::ranges::find(table, queue) != table.end();
}

// A table that leaves out queues, although gpurx took nothing there.
std::optional<finding> look_at_rss(interface_facts const& nic)
{
    constexpr char topic[] = "rss";
    if (nic.rss_table.empty())
        return finding{.level = severity::degraded,
                       .topic = topic,
                       .what = "the NIC has no RSS table: other traffic may arrive on the queue of a session",
                       .evidence = "no indirection table"};
    auto reserved = detail::reserved_queues(nic.session_changes, nic.rss_table, queues_of(nic));
    for (auto const& queue : nic.queues) {
        if (queue.taken())
            reserved.erase(queue.id);  // it is seen for what
    }
    if (reserved.empty())
        return std::nullopt;
    return finding{
        .level = severity::note,
        .topic = topic,
        .what = fmt::format("somebody keeps queue{} {} out of RSS, perhaps for a container: sessions leave {} alone",
                            reserved.size() == 1 ? "" : "s", fmt::join(reserved, ", "),
                            reserved.size() == 1 ? "it" : "them"),
        .evidence = fmt::format("indirection table: {}", detail::describe(detail::setting::rss_table, nic.rss_table)),
        .command = fmt::format("ethtool -X {} default", nic.name)};
}

bool is_of_session(interface_facts const& nic, std::uint32_t context)
{
    return std::ranges::any_of(nic.sessions, [context](auto const& session) {
        return std::ranges::any_of(session.owner.contexts, [context](auto const& one) { return one.id == context; });
    });
}

void look_at_contexts(interface_facts const& nic, unsigned queue, std::vector<finding>& found)
{
    for (auto const& context : nic.rss_contexts) {
        if (is_of_session(nic, context.id) || !is_in(context.table, queue))
            continue;
        found.push_back(
            {.level = severity::degraded,
             .topic = "rss-context",
             .what = fmt::format("RSS context {}, which is not gpurx's, sends traffic to queue {}, which a "
                                 "session would take",
                                 context.id, queue),
             .evidence = fmt::format("its table: {}", detail::describe(detail::setting::rss_table, context.table)),
             .command = fmt::format("ethtool -X {} context {} delete", nic.name, context.id)});
    }
}

bool is_of_session(interface_facts const& nic, detail::installed_rule const& rule)
{
    return std::ranges::any_of(nic.sessions, [&rule](auto const& session) {
        return std::ranges::any_of(session.owner.rules,
                                   [&rule](auto const& one) { return one.id == rule.id && one.rule == rule.rule; });
    });
}

void look_at_rules(interface_facts const& nic, unsigned queue, std::vector<finding>& found)
{
    std::vector<std::uint32_t> others;
    for (auto const& rule : nic.rules.value_or(std::vector<detail::installed_rule>{})) {
        if (is_of_session(nic, rule))
            continue;
        if (rule.queue != queue) {
            others.push_back(rule.id);
            continue;
        }
        found.push_back(
            {.level = severity::degraded,
             .topic = "rules",
             .what = fmt::format("rule {}, which is not gpurx's, sends traffic to queue {}, which a session "
                                 "would take",
                                 rule.id, queue),
             .evidence = rule.rule ? detail::to_string(rule.rule->match) : "a rule of another form",
             .command = fmt::format("ethtool -N {} delete {}", nic.name, rule.id)});
    }
    if (!others.empty())
        found.push_back({.level = severity::note,
                         .topic = "rules",
                         .what = "there are rules that are not gpurx's; it leaves them alone",
                         .evidence = fmt::format("rule {}", fmt::join(others, ", ")),
                         .command = fmt::format("ethtool -n {}", nic.name)});
}

finding look_at_ring(interface_facts const& nic, machine_facts const& machine, wishes const& wanted, bool in_use)
{
    constexpr char topic[] = "rx-ring";
    constexpr std::uint32_t fewest_frames = 64;  // that drivers take, most of them
    if (!nic.rings || nic.rings->rx_frames.value_or(0) == 0)
        return {.level = severity::note,
                .topic = topic,
                .what = "the driver does not say how much of the memory its ring holds",
                .evidence = "no rx ring in ethtool -g"};
    auto const frames = *nic.rings->rx_frames;
    auto const page = machine.memory.page_size;
    auto const demand = detail::demand_of({.frames = frames, .mtu = nic.mtu}, 1, page);
    auto const held = demand.bytes();
    auto const least_rest = 2 * detail::smallest_share(page);  // of which receive buffers have one half
    auto evidence = fmt::format("a ring of {} frames at MTU {} holds at least {} of {}", frames, nic.mtu,
                                size_text(held), size_text(wanted.memory));
    if (!demand.is_tight(wanted.memory))
        return {.topic = topic, .what = "the ring leaves most of the memory to flows", .evidence = std::move(evidence)};

    bool const starves = held + least_rest > wanted.memory;
    finding found{.level = starves ? severity::blocking : severity::degraded,
                  .topic = topic,
                  .what = starves
                              ? "the ring of a queue holds so much of the memory that no flow can move: make it "
                                "smaller, or the memory larger"
                              : "the ring of a queue holds much of the memory all the time: make it smaller, or the "
                                "memory larger",
                  .evidence = std::move(evidence)};
    auto const fitting = static_cast<std::uint32_t>(demand.frames_within(wanted.memory / 4).value_or(0));
    if (fitting < fewest_frames) {
        found.what += fmt::format(" ({})", size_text(4 * held));
        return found;
    }
    found.command = fmt::format("ethtool -G {} rx {}", nic.name, fitting);
    if (!in_use)  // it restarts all queues
        found.mend = mending{mending::kind::rx_ring, fitting};
    return found;
}

// What goes with a session that has ended; `condition` says when.
void put_undoing(detail::journal_owner const& owner, std::string_view condition, std::vector<std::string>& lines)
{
    auto const name = [](char const* kind, std::optional<std::uint32_t> id) {
        return id ? fmt::format("{} {}", kind, *id) : fmt::format("{} without a number yet", kind);
    };
    std::for_each(owner.rules.rbegin(), owner.rules.rend(), [&](detail::journal_rule const& entry) {
        lines.push_back(
            fmt::format("{} ({}) is removed{}", name("rule", entry.id), to_string(entry.rule.match), condition));
    });
    std::for_each(owner.contexts.rbegin(), owner.contexts.rend(), [&](detail::journal_context const& entry) {
        lines.push_back(fmt::format("{} over queues {} is removed{}", name("RSS context", entry.id),
                                    fmt::join(entry.queues, ", "), condition));
    });
}

// What recovery does to the NIC, in its order. It can tell of more sessions than this whether they have ended.
std::vector<std::string> undoing(interface_facts const& nic)
{
    std::vector<std::string> lines;
    std::vector<unsigned> free;
    bool one_lives = false;
    bool one_may_live = false;
    for (auto const& [owner, alive, program] : nic.sessions) {
        one_lives = one_lives || alive == true;
        one_may_live = one_may_live || !alive;
        if (alive != true)
            put_undoing(owner, alive ? "" : fmt::format(", if process {} has ended", owner.key.pid), lines);
        if (alive == false)
            free.insert(free.end(), owner.queues.begin(), owner.queues.end());
    }
    auto const of_rss =
        std::ranges::find(nic.session_changes, detail::setting::rss_table, &detail::setting_change::what);
    if ((one_lives || one_may_live) && of_rss != nic.session_changes.end())
        lines.push_back(fmt::format("rss-table: queues {} are used again", fmt::join(free, ", ")));
    if (one_lives)
        return lines;
    std::for_each(nic.session_changes.rbegin(), nic.session_changes.rend(), [&](detail::setting_change const& change) {
        lines.push_back(
            fmt::format("{}: {} -> {}{}", to_string(change.what), detail::describe(change.what, change.ours),
                        detail::describe(change.what, change.original), one_may_live ? ", if no session is left" : ""));
    });
    return lines;
}

finding leftovers(interface_facts const& nic, std::string evidence)
{
    return {.level = severity::degraded,
            .topic = "leftovers",
            .what = "a killed process has left the NIC set up: the next session puts it back, or --fix does",
            .evidence = std::move(evidence),
            .command = fmt::format("gpurx-doctor {} --fix", nic.name),
            .mend = mending{mending::kind::recover, 0},
            .changes = undoing(nic)};
}

std::string names_of(std::vector<detail::setting_change> const& changes)
{
    std::vector<std::string> all;
    all.reserve(changes.size());
    for (auto const& change : changes)
        all.push_back(fmt::format("{} {} -> {}", to_string(change.what), detail::describe(change.what, change.original),
                                  detail::describe(change.what, change.ours)));
    return fmt::format("{}", fmt::join(all, ", "));
}

void look_at_sessions(interface_facts const& nic, std::vector<finding>& found)
{
    std::vector<std::string> ended;
    for (auto const& session : nic.sessions) {
        auto const queues =
            fmt::format("queues {}, {} rules", fmt::join(session.owner.queues, ", "), session.owner.rules.size());
        if (session.alive == false)
            ended.push_back(fmt::format("process {} has ended: {}", session.owner.key.pid, queues));
        else
            found.push_back({.level = severity::note,
                             .topic = "sessions",
                             .what = session.alive
                                         ? "a gpurx session is using the interface"
                                         : "a gpurx session uses the interface, or did: its process cannot be "
                                           "seen from here",
                             .evidence = fmt::format("{}: {}", describe(session), queues)});
    }
    if (!ended.empty())
        found.push_back(leftovers(nic, fmt::format("{}", fmt::join(ended, "; "))));
    else if (nic.sessions.empty() && !nic.session_changes.empty())
        found.push_back(leftovers(nic, names_of(nic.session_changes)));
    if (!nic.own_changes.empty())
        found.push_back({.level = severity::note,
                         .topic = "fixed",
                         .what = "an earlier --fix has changed settings here",
                         .evidence = names_of(nic.own_changes),
                         .command = fmt::format("gpurx-doctor {} --undo", nic.name)});
    if (!nic.journal_error.empty())
        found.push_back({.level = severity::note,
                         .topic = "journal",
                         .what = "who uses the interface, and what killed processes left, cannot be read",
                         .evidence = nic.journal_error});
}

finding look_at_route(interface_facts const& nic, gpu_facts const& gpu)
{
    constexpr char topic[] = "pcie";
    if (!nic.pci || !gpu.pci)
        return {.level = severity::note,
                .topic = topic,
                .what = "how bytes get from the NIC to the GPU cannot be told",
                .evidence = nic.pci ? "the GPU has no PCI address" : "the NIC has no PCI address"};
    auto const route = route_between(*nic.pci, *gpu.pci);
    auto const ends = fmt::format("{} to {}", nic.pci->address, gpu.pci->address);
    if (!route.common)
        return {.level = severity::degraded,
                .topic = topic,
                .what =
                    "NIC and GPU have no PCIe switch or root port in common: what the NIC writes crosses the CPU's "
                    "root complex, if the driver of the GPU allows it at all",
                .evidence = ends,
                .command = "nvidia-smi topo -m"};
    std::vector<std::string> commands;
    for (auto const& bridge : route.between) {
        for (auto const* const end : {&*nic.pci, &*gpu.pci}) {
            if (auto const turns = end->turns.find(bridge); turns != end->turns.end() && turns->second)
                commands.push_back(fmt::format("setpci -s {} ECAP_ACS+6.w=0:c", bridge));
        }
    }
    if (!commands.empty())
        return {.level = severity::degraded,
                .topic = topic,
                .what = "access control (ACS) of bridges sends what the NIC writes up to the root and back",
                .evidence = ends,
                .command = fmt::format("{}", fmt::join(commands, "; "))};
    return {.topic = topic, .what = "what the NIC writes reaches the GPU below a common bridge", .evidence = ends};
}

std::optional<finding> look_at_iommu(interface_facts const& nic)
{
    if (!nic.pci)
        return std::nullopt;
    auto const& type = nic.pci->iommu;
    if (type.empty() || type == "identity")
        return finding{.topic = "iommu",
                       .what = "no IOMMU translates the NIC's addresses",
                       .evidence = type.empty() ? "no IOMMU group" : "group of type identity"};
    return finding{
        .level = severity::degraded,
        .topic = "iommu",
        .what = "an IOMMU translates the NIC's addresses, which keeps it from GPU memory: boot with iommu=pt",
        .evidence = fmt::format("group of type {}", type)};
}

// Queues of a NIC that cannot be seen from here.
finding look_at_leases(interface_facts const& nic)
{
    constexpr char topic[] = "leases";
    auto const leased = detail::leased_queues(nic.queues);
    auto evidence = fmt::format("{} RX queue{}, of which the first is its own", nic.queues.size(),
                                nic.queues.size() == 1 ? "" : "s");
    detail::netdev::rx_queue const* free = nullptr;
    for (auto const& queue : leased) {
        if (queue.taken())
            fmt::format_to(std::back_inserter(evidence), "; queue {}: {}", queue.id, detail::netdev::user_of(queue));
        else if (free == nullptr)
            free = &queue;
    }
    if (leased.empty())
        return {.level = severity::blocking,
                .topic = topic,
                .what = "no queue of a NIC is leased to the interface: that is done where the NIC is",
                .evidence = std::move(evidence)};
    if (free == nullptr)
        return {.level = severity::blocking,
                .topic = topic,
                .what = "every queue that is leased to the interface is in use: end one of those that use them",
                .evidence = std::move(evidence)};
    return {.topic = topic,
            .what = fmt::format("queue {}, which is leased to the interface, can be bound", free->id),
            .evidence = std::move(evidence)};
}

// An interface that has its queues from a NIC: a session binds them, and changes nothing.
std::vector<finding> look_at_lessee(interface_facts const& nic)
{
    std::vector<finding> found{look_at_link(nic)};
    if (!nic.up)
        return found;
    found.push_back(look_at_leases(nic));
    if (detail::leased_queues(nic.queues).empty())
        return found;
    found.push_back(look_at_driver(nic));
    found.push_back({.level = severity::note,
                     .topic = "lessor",
                     .what = "header split, the ring, and rules that send flows to the queues are set on the NIC that "
                             "they are leased from: run gpurx-doctor there",
                     .evidence = name_of_driver(nic)});
    return found;
}

// What the same memory costs from the far socket of the machine: every write of the NIC crosses between them.
std::optional<finding> look_at_numa(interface_facts const& nic, gpu_facts const& gpu)
{
    if (!nic.pci || !nic.pci->numa_node || !gpu.pci || !gpu.pci->numa_node)
        return std::nullopt;  // one node has all, or firmware does not tell
    int const near = *nic.pci->numa_node;
    int const far = *gpu.pci->numa_node;
    finding found{.topic = "numa",
                  .what = detail::describe_nodes(near, far),
                  .evidence = fmt::format("NIC on node {}, GPU {} on node {}", near, gpu.ordinal, far)};
    if (near != far) {
        found.level = severity::degraded;
        found.command = "nvidia-smi topo -m";
    }
    return found;
}

// An alias is given by hand, or by what manages the device. Names besides its own udev gives to most.
std::optional<finding> look_at_aliases(interface_facts const& nic)
{
    auto const others = fmt::format("{}", fmt::join(nic.alternative_names, ", "));
    if (nic.alias.empty() && others.empty())
        return std::nullopt;
    if (nic.alias.empty())
        return finding{.topic = "aliases",
                       .what = "the interface has other names, and no alias of somebody who manages it",
                       .evidence = "other names: " + others};
    return finding{.level = severity::note,
                   .topic = "aliases",
                   .what =
                       "somebody has given the interface an alias: who manages it (as Cilium does in a cluster) may "
                       "change its settings and queues as well",
                   .evidence = fmt::format("alias {}{}{}", nic.alias, others.empty() ? "" : "; other names: ", others),
                   .command = fmt::format("ip -details link show dev {}", nic.name)};
}

// What gpurxd says to this user. Who has the right does not need it.
std::optional<finding> look_at_daemon(interface_facts const& nic, process_facts const& process, wishes const& wanted)
{
    if (!nic.daemon)
        return std::nullopt;
    auto const& said = nic.daemon->said;
    finding found{.topic = "gpurxd", .what = {}, .evidence = said.text};
    if (said.error == EBADF) {
        found.what = fmt::format("gpurxd would set up queues of {} for user {}, with {} of memory", nic.name,
                                 process.user, size_text(wanted.memory));
        found.evidence = fmt::format("its answer at {}", process.daemon);
        return found;
    }
    found.level = process.net_admin ? severity::note : severity::blocking;
    if (!nic.daemon->answered) {
        found.what = "gpurxd does not answer";
        found.command = "systemctl restart gpurxd.socket gpurxd";
    } else if (said.error == EACCES && nic.daemon->less_would_do) {
        found.what = fmt::format(
            "gpurxd's policy allows user {} less than {} of memory on {}: ask for less (--memory), "
            "or raise memory in the user's line of it",
            process.user, size_text(wanted.memory), nic.name);
    } else if (said.error == EACCES) {
        found.what = fmt::format("gpurxd's policy allows user {} nothing of {}", process.user, nic.name);
        found.command =
            fmt::format("echo allow user {} interface {} >> /etc/gpurx/gpurxd.conf", process.user, nic.name);
    } else if (said.error == EUSERS) {
        found.what =
            fmt::format("user {} has as many sessions on {} as gpurxd's policy allows", process.user, nic.name);
    } else {
        found.what = fmt::format("gpurxd refuses queues of {}", nic.name);
    }
    return found;
}

}  // namespace

std::vector<finding> look_at_interface(interface_facts const& nic, machine_facts const& machine, gpu_facts const* gpu,
                                       wishes const& wanted)
{
    auto const is_lessee = detail::is_lessee(nic.driver) && nic.settings.error == 0;
    auto found = is_lessee ? look_at_lessee(nic) : std::vector{look_at_driver(nic)};
    if (auto daemon = look_at_daemon(nic, machine.process, wanted))
        found.push_back(*std::move(daemon));
    if (is_lessee)
        return found;
    if (found.front().level == severity::blocking && nic.settings.error == 0 && !nic.channels) {
        return found;  // there is nothing of a NIC to speak of
    }
    if (nic.settings.error != 0) {
        found.push_back({.level = severity::blocking,
                         .topic = "settings",
                         .what = "the interface cannot be asked for its settings",
                         .evidence = nic.settings.text});
        return found;
    }
    found.push_back(look_at_link(nic));
    if (auto aliases = look_at_aliases(nic))
        found.push_back(*std::move(aliases));
    found.push_back(look_at_xdp(nic));
    found.push_back(look_at_header_split(nic));
    if (auto gro = look_at_hardware_gro(nic))
        found.push_back(*std::move(gro));
    found.push_back(look_at_steering(nic));
    found.push_back(look_at_channels(nic));
    if (auto rss = look_at_rss(nic))
        found.push_back(*std::move(rss));
    if (auto const plan = plan_for(nic)) {
        auto const queue = plan->queues.front();
        look_at_contexts(nic, queue, found);
        look_at_rules(nic, queue, found);
    }
    found.push_back(look_at_ring(nic, machine, wanted, !users_of_queues(nic).empty()));
    look_at_sessions(nic, found);
    if (gpu != nullptr && gpu->error.empty()) {
        found.push_back(look_at_route(nic, *gpu));
        if (auto numa = look_at_numa(nic, *gpu))
            found.push_back(*std::move(numa));
        if (auto iommu = look_at_iommu(nic))
            found.push_back(*std::move(iommu));
    }
    return found;
}

diagnosis diagnose(facts const& seen, interface_facts const& interface)
{
    auto const* const gpu = seen.gpu ? &*seen.gpu : nullptr;
    auto found = look_at_machine(seen.machine, gpu != nullptr, seen.wanted);
    // What changes nothing keeps no journal.
    if (detail::is_lessee(interface.driver))
        std::erase_if(found, [](finding const& one) { return one.topic == "state-directory"; });
    if (gpu != nullptr)
        std::ranges::move(look_at_gpu(*gpu, seen.wanted), std::back_inserter(found));
    std::ranges::move(look_at_interface(interface, seen.machine, gpu, seen.wanted), std::back_inserter(found));
    return {judge(found), std::move(found)};
}

bool can_ever(std::vector<finding> const& findings) noexcept
{
    return std::ranges::none_of(
        findings, [](auto const& each) { return each.topic == "driver" && each.level == severity::blocking; });
}

interface_facts const* best_of(facts const& seen)
{
    auto const badness = [&seen](interface_facts const& one) {
        auto const found = diagnose(seen, one).findings;
        std::map<severity, long> count;
        for (auto const& each : found)
            ++count[each.level];
        // A NIC that only needs mending is nearer to it than a device that is none.
        return std::tuple{!can_ever(found), one.loopback, count[severity::blocking], count[severity::degraded],
                          !one.up};
    };
    auto const best = std::ranges::min_element(seen.interfaces, {}, badness);
    return best != seen.interfaces.end() ? &*best : nullptr;
}

}  // namespace gpurx::doctor
