// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "base/byte_size.hpp"
#include "interface_findings.hpp"
#include "lease/leased_nic.hpp"
#include "lease/queue_plan.hpp"
#include "lease/settings.hpp"
#include "session/budget.hpp"

namespace gpurx::doctor {

namespace {

using detail::size_text;

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

// The users of the queues that a session cannot have.
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
        users.emplace(queue, "kept out of RSS by another program");
    return users;
}

unsigned most_queues_of(interface_facts const& nic)
{
    auto const now = queues_of(nic);
    return nic.channels ? std::max(detail::most_rx_queues(*nic.channels), now) : now;
}

// The plan that a session would choose.
std::optional<detail::queue_plan> plan_for(interface_facts const& nic)
{
    std::set<unsigned> taken;
    for (auto const& [queue, user] : users_of_queues(nic))
        taken.insert(queue);
    return detail::plan_queues(queues_of(nic), most_queues_of(nic), taken, 1);
}

finding check_channels(interface_facts const& nic)
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
                .what = "there is no queue to set aside: queue 0 serves all other traffic",
                .evidence = std::move(evidence)};
    if (!plan)
        return {.level = severity::blocking,
                .topic = topic,
                .what = "every queue that could be set aside is in use: end a program that uses one",
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
std::optional<finding> check_rss(interface_facts const& nic)
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
        .what = fmt::format(
            "another program keeps queue{} {} out of RSS, perhaps for a container: sessions leave {} alone",
            reserved.size() == 1 ? "" : "s", fmt::join(reserved, ", "), reserved.size() == 1 ? "it" : "them"),
        .evidence = fmt::format("indirection table: {}", detail::describe(detail::setting::rss_table, nic.rss_table)),
        .command = fmt::format("ethtool -X {} default", nic.name)};
}

bool is_of_session(interface_facts const& nic, std::uint32_t context)
{
    return std::ranges::any_of(nic.sessions, [context](auto const& session) {
        return std::ranges::any_of(session.owner.contexts, [context](auto const& one) { return one.id == context; });
    });
}

void check_contexts(interface_facts const& nic, unsigned queue, std::vector<finding>& found)
{
    for (auto const& context : nic.rss_contexts) {
        if (is_of_session(nic, context.id) || !is_in(context.table, queue))
            continue;
        found.push_back(
            {.level = severity::degraded,
             .topic = "rss-context",
             .what = fmt::format("RSS context {} of another program sends traffic to queue {}, which a session would "
                                 "take",
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

void check_rules(interface_facts const& nic, unsigned queue, std::vector<finding>& found)
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
             .what = fmt::format("rule {} of another program sends traffic to queue {}, which a session would take",
                                 rule.id, queue),
             .evidence = rule.rule ? detail::to_string(rule.rule->match) : "a rule of another form",
             .command = fmt::format("ethtool -N {} delete {}", nic.name, rule.id)});
    }
    if (!others.empty())
        found.push_back({.level = severity::note,
                         .topic = "rules",
                         .what = "other programs have rules; gpurx does not change them",
                         .evidence = fmt::format("rule {}", fmt::join(others, ", ")),
                         .command = fmt::format("ethtool -n {}", nic.name)});
}

finding check_ring(interface_facts const& nic, machine_facts const& machine, requirements const& wanted, bool in_use)
{
    constexpr char topic[] = "rx-ring";
    constexpr std::uint32_t fewest_frames = 64;  // that drivers take, most of them
    if (!nic.rings || nic.rings->rx_frames.value_or(0) == 0)
        return {.level = severity::note,
                .topic = topic,
                .what = "the driver does not report the share of the memory that its ring holds",
                .evidence = "no rx ring in ethtool -g"};
    auto const frames = *nic.rings->rx_frames;
    auto const page = machine.memory.page_size;
    auto const demand = detail::demand_of({.frames = frames, .mtu = nic.mtu}, 1, page);
    auto const held = demand.bytes();
    auto const least_rest = 2 * detail::smallest_share(page);  // of which receive buffers have one half
    auto evidence = fmt::format("a ring of {} frames at MTU {} holds at least {} of {}", frames, nic.mtu,
                                size_text(held), size_text(wanted.memory));
    if (!demand.is_tight(wanted.memory))
        return {
            .topic = topic, .what = "the ring leaves most of the memory for flows", .evidence = std::move(evidence)};

    bool const starves = held + least_rest > wanted.memory;
    finding found{.level = starves ? severity::blocking : severity::degraded,
                  .topic = topic,
                  .what = starves
                              ? "the ring of a queue holds so much of the memory that no flow can receive: make the "
                                "ring smaller, or the memory larger"
                              : "the ring of a queue always holds much of the memory: make the ring smaller, or the "
                                "memory larger",
                  .evidence = std::move(evidence)};
    auto const fitting = static_cast<std::uint32_t>(demand.frames_within(wanted.memory / 4).value_or(0));
    if (fitting < fewest_frames) {
        found.what += fmt::format(" ({})", size_text(4 * held));
        return found;
    }
    found.command = fmt::format("ethtool -G {} rx {}", nic.name, fitting);
    if (!in_use)  // it restarts all queues
        found.fix = fix_action{fix_action::kind::rx_ring, fitting};
    return found;
}

// Lists the rules and contexts that go with a session that has ended; `condition` says when.
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

// The changes that recovery makes to the NIC, in its order. Recovery sees of more sessions whether they have ended.
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
            .what = "a killed process has left changes on the NIC: the next session or --fix undoes them",
            .evidence = std::move(evidence),
            .command = fmt::format("gpurx-doctor {} --fix", nic.name),
            .fix = fix_action{fix_action::kind::recover, 0},
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

}  // namespace

void check_queues(interface_facts const& nic, machine_facts const& machine, requirements const& wanted,
                  std::vector<finding>& found)
{
    found.push_back(check_channels(nic));
    if (auto rss = check_rss(nic))
        found.push_back(*std::move(rss));
    if (auto const plan = plan_for(nic)) {
        auto const queue = plan->queues.front();
        check_contexts(nic, queue, found);
        check_rules(nic, queue, found);
    }
    found.push_back(check_ring(nic, machine, wanted, !users_of_queues(nic).empty()));
}

void check_sessions(interface_facts const& nic, std::vector<finding>& found)
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
                                         : "a gpurx session uses or used the interface: its process is not visible "
                                           "from here",
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
                         .what = "users of the interface, and leftovers of killed processes, cannot be read",
                         .evidence = nic.journal_error});
}

finding check_leases(interface_facts const& nic)
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
                .what = "no queue of a NIC is leased to the interface: lease one in the NIC's network namespace",
                .evidence = std::move(evidence)};
    if (free == nullptr)
        return {.level = severity::blocking,
                .topic = topic,
                .what = "every queue leased to the interface is in use: end a program that uses one",
                .evidence = std::move(evidence)};
    return {.topic = topic,
            .what = fmt::format("queue {}, leased to the interface, can be bound", free->id),
            .evidence = std::move(evidence)};
}

}  // namespace gpurx::doctor
