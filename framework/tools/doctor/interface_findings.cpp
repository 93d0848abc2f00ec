// SPDX-License-Identifier: Apache-2.0
#include "interface_findings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>

#include "base/byte_size.hpp"
#include "lease/leased_nic.hpp"

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

finding check_driver(interface_facts const& nic)
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
                .what = fmt::format("{} supports binding memory to its queues; only a process with CAP_NET_ADMIN can "
                                    "check that for this NIC",
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

finding check_link(interface_facts const& nic)
{
    constexpr char topic[] = "link";
    if (!nic.up)
        return {.level = severity::blocking,
                .topic = topic,
                .what = "the interface is down",
                .evidence = "no IFF_UP",
                .command = fmt::format("ip link set dev {} up", nic.name),
                .fix = fix_action{fix_action::kind::link_up, 1}};
    if (!nic.carrier)
        return {.level = severity::degraded,
                .topic = topic,
                .what = "the interface has no carrier: check the cable and its other end",
                .evidence = "up, without carrier"};
    return {.topic = topic, .what = "the interface is up", .evidence = fmt::format("MTU {}", nic.mtu)};
}

finding check_header_split(interface_facts const& nic)
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
    return {
        .level = severity::note,
        .topic = topic,
        .what =
            "headers are not split from the payload of all packets: a session turns header split on while it is open",
        .evidence = std::move(evidence),
        .command = nic.rings->hds_threshold ? fmt::format("ethtool -G {} tcp-data-split on hds-thresh 0", nic.name)
                                            : fmt::format("ethtool -G {} tcp-data-split on", nic.name)};
}

// Of the drivers that can, mlx5 alone splits headers only together with it.
std::optional<finding> check_hardware_gro(interface_facts const& nic)
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

finding check_steering(interface_facts const& nic)
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
                .what = "flow steering is off: a session turns it on while it is open",
                .evidence = "rx-ntuple-filter off",
                .command = fmt::format("ethtool -K {} ntuple on", nic.name)};
    return {.topic = topic, .what = "the NIC steers flows to queues", .evidence = "rx-ntuple-filter on"};
}

finding check_xdp(interface_facts const& nic)
{
    if (!nic.xdp)
        return {.topic = "xdp", .what = "no XDP program is attached", .evidence = "none attached"};
    return {.level = severity::blocking,
            .topic = "xdp",
            .what = "an XDP program is attached: a NIC cannot have both XDP and device memory",
            .evidence = "IFLA_XDP",
            .command = fmt::format("ip link set dev {} xdp off", nic.name)};
}

// An interface that has its queues from a NIC: a session binds them, and changes nothing.
std::vector<finding> check_lessee(interface_facts const& nic)
{
    std::vector<finding> found{check_link(nic)};
    if (!nic.up)
        return found;
    found.push_back(check_leases(nic));
    if (detail::leased_queues(nic.queues).empty())
        return found;
    found.push_back(check_driver(nic));
    found.push_back({.level = severity::note,
                     .topic = "lessor",
                     .what = "the leasing NIC has the settings of header split, the ring, and rules that send flows "
                             "to the queues: run gpurx-doctor there",
                     .evidence = name_of_driver(nic)});
    return found;
}

// An alias is given by hand, or by what manages the device. Names besides its own udev gives to most.
std::optional<finding> check_aliases(interface_facts const& nic)
{
    auto const others = fmt::format("{}", fmt::join(nic.alternative_names, ", "));
    if (nic.alias.empty() && others.empty())
        return std::nullopt;
    if (nic.alias.empty())
        return finding{.topic = "aliases",
                       .what = "the interface has other names, and no alias of a manager",
                       .evidence = "other names: " + others};
    return finding{.level = severity::note,
                   .topic = "aliases",
                   .what =
                       "the interface has an alias: its manager (as Cilium in a cluster) may "
                       "change its settings and queues as well",
                   .evidence = fmt::format("alias {}{}{}", nic.alias, others.empty() ? "" : "; other names: ", others),
                   .command = fmt::format("ip -details link show dev {}", nic.name)};
}

// The answer of gpurxd to this user. A user with CAP_NET_ADMIN does not need it.
std::optional<finding> check_daemon(interface_facts const& nic, process_facts const& process,
                                    requirements const& wanted)
{
    if (!nic.daemon)
        return std::nullopt;
    auto const& said = nic.daemon->said;
    finding found{.topic = "gpurxd", .what = {}, .evidence = said.text};
    if (said.error == EBADF) {
        found.what = fmt::format("gpurxd would set up queues of {} for user {}, with {} of memory", nic.name,
                                 process.user, size_text(wanted.memory));
        found.evidence = fmt::format("the answer of gpurxd at {}", process.daemon);
        return found;
    }
    found.level = process.net_admin ? severity::note : severity::blocking;
    if (!nic.daemon->answered) {
        found.what = "gpurxd does not answer";
        found.command = "systemctl restart gpurxd.socket gpurxd";
    } else if (said.error == EACCES && nic.daemon->less_would_do) {
        found.what = fmt::format(
            "gpurxd's policy allows user {} less than {} of memory on {}: use less (--memory), or raise the limit "
            "memory in the user's line",
            process.user, size_text(wanted.memory), nic.name);
    } else if (said.error == EACCES) {
        // No command: gpurxd's answer, which is the evidence, names the file.
        found.what = fmt::format(
            "gpurxd's policy allows user {0} nothing of {1}: add the line 'allow user {0} interface "
            "{1}'",
            process.user, nic.name);
    } else if (said.error == EUSERS) {
        found.what =
            fmt::format("user {} has reached the limit of sessions on {} in gpurxd's policy", process.user, nic.name);
    } else {
        found.what = fmt::format("gpurxd refuses queues of {}", nic.name);
    }
    return found;
}

std::optional<finding> check_trial(interface_facts const& nic)
{
    constexpr char topic[] = "zcrx-queue";
    if (!nic.trial)
        return std::nullopt;
    auto const& trial = *nic.trial;
    if (!trial.failure.empty())
        return finding{.level = severity::note,
                       .topic = topic,
                       .what = fmt::format("no queue of {} can be registered with io_uring", nic.name),
                       .evidence = trial.failure};
    return finding{
        .level = trial.notices.empty() ? severity::fine : severity::note,
        .topic = topic,
        .what = fmt::format("queue {} was registered with io_uring, and given back", fmt::join(trial.queues, ", ")),
        .evidence = trial.notices.empty() ? "a session with transport zcrx was opened and ended"
                                          : fmt::format("{}", fmt::join(trial.notices, "; "))};
}

}  // namespace

std::vector<finding> check_interface(interface_facts const& nic, machine_facts const& machine, gpu_facts const* gpu,
                                     requirements const& wanted)
{
    auto const is_lessee = detail::is_lessee(nic.driver) && nic.settings.error == 0;
    auto found = is_lessee ? check_lessee(nic) : std::vector{check_driver(nic)};
    if (auto daemon = check_daemon(nic, machine.process, wanted))
        found.push_back(*std::move(daemon));
    if (auto trial = check_trial(nic))
        found.push_back(*std::move(trial));
    if (is_lessee)
        return found;
    if (found.front().level == severity::blocking && nic.settings.error == 0 && !nic.channels) {
        return found;  // there is nothing of a NIC to speak of
    }
    if (nic.settings.error != 0) {
        found.push_back({.level = severity::blocking,
                         .topic = "settings",
                         .what = "the settings of the interface cannot be read",
                         .evidence = nic.settings.text});
        return found;
    }
    found.push_back(check_link(nic));
    if (auto aliases = check_aliases(nic))
        found.push_back(*std::move(aliases));
    found.push_back(check_xdp(nic));
    found.push_back(check_header_split(nic));
    if (auto gro = check_hardware_gro(nic))
        found.push_back(*std::move(gro));
    found.push_back(check_steering(nic));
    check_queues(nic, machine, wanted, found);
    check_sessions(nic, found);
    if (gpu != nullptr && gpu->error.empty())
        check_path(nic, *gpu, found);
    return found;
}

diagnosis diagnose(facts const& seen, interface_facts const& interface)
{
    auto const* const gpu = seen.gpu ? &*seen.gpu : nullptr;
    auto found = check_machine(seen.machine, gpu != nullptr, seen.wanted);
    // A session on a lessee changes no setting, and keeps no journal.
    if (detail::is_lessee(interface.driver))
        std::erase_if(found, [](finding const& one) { return one.topic == "state-directory"; });
    if (gpu != nullptr)
        std::ranges::move(check_gpu(*gpu, seen.wanted), std::back_inserter(found));
    std::ranges::move(check_interface(interface, seen.machine, gpu, seen.wanted), std::back_inserter(found));
    return {judge(found), std::move(found)};
}

bool supports_devmem(std::vector<finding> const& findings) noexcept
{
    return std::ranges::none_of(
        findings, [](auto const& each) { return each.topic == "driver" && each.level == severity::blocking; });
}

interface_facts const* best_interface(facts const& seen)
{
    auto const rank = [&seen](interface_facts const& one) {
        auto const found = diagnose(seen, one).findings;
        std::map<severity, long> count;
        for (auto const& each : found)
            ++count[each.level];
        // A NIC that needs fixes ranks before a device that is no NIC.
        return std::tuple{!supports_devmem(found), one.loopback, count[severity::blocking], count[severity::degraded],
                          !one.up};
    };
    auto const best = std::ranges::min_element(seen.interfaces, {}, rank);
    return best != seen.interfaces.end() ? &*best : nullptr;
}

}  // namespace gpurx::doctor
