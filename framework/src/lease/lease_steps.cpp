// SPDX-License-Identifier: Apache-2.0
#include "lease_steps.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <gpurx/error.hpp>

#include "base/failure.hpp"
#include "base/thread.hpp"
#include "queue_plan.hpp"
#include "settings.hpp"

namespace gpurx::detail {

namespace {

// The user of each queue, in words.
using queue_users = std::map<unsigned, std::string>;

void add_owners(queue_users& users, journal const& log)
{
    for (auto const& owner : log.owners) {
        for (unsigned const queue : owner.queues)
            users.emplace(queue, fmt::format("the gpurx session of process {}", owner.key.pid));
    }
}

// Rules and RSS contexts that are not in the journal.
void add_foreign_steering(queue_users& users, journal const& log, nic_device& nic)
{
    std::set<std::uint32_t> ours;
    std::set<std::uint32_t> our_contexts;
    for (auto const& owner : log.owners) {
        for (auto const& rule : owner.rules)
            ours.insert(rule.id.value_or(0));
        for (auto const& context : owner.contexts)
            our_contexts.insert(context.id.value_or(0));
    }
    for (auto const& rule : nic.rules()) {
        if (rule.queue && !ours.contains(rule.id))
            users.emplace(*rule.queue, fmt::format("rule {} of another program", rule.id));
    }
    for (auto const& context : nic.rss_contexts()) {
        for (unsigned const queue : context.table) {
            if (!our_contexts.contains(context.id))
                users.emplace(queue, fmt::format("RSS context {} of another program", context.id));
        }
    }
}

queue_users users_of_queues(journal const& log, nic_device& nic)
{
    queue_users users;
    add_owners(users, log);
    for (auto const& queue : nic.rx_queues()) {
        if (queue.taken())
            users.emplace(queue.id, user_of(queue));
    }
    add_foreign_steering(users, log, nic);
    for (unsigned const queue : reserved_queues(log.changes, nic.rss_table(), nic.channels().rx_queues()))
        users.emplace(queue, "another program, which keeps it out of RSS (ethtool -x)");
    return users;
}

[[noreturn]] void refuse_queues(std::string const& interface, unsigned wanted, unsigned most, queue_users const& users)
{
    // One is left for other traffic.
    auto const possible = most - std::min(most, 1U);
    auto const object =
        fmt::format("{} ({} queue{} wanted, {} possible)", interface, wanted, wanted == 1 ? "" : "s", possible);
    if (users.empty()) {
        fail(ERANGE, "lease", object, "ask for fewer rx_queues: at least one queue must be left for other traffic");
    }
    std::map<std::string, std::vector<unsigned>> shares;
    for (auto const& [queue, by] : users)
        shares[by].push_back(queue);
    std::vector<std::string> words;
    words.reserve(shares.size());
    for (auto const& [by, queues] : shares) {
        words.push_back(
            fmt::format("{} {} used by {}", queues.size() == 1 ? "queue" : "queues", fmt::join(queues, ", "), by));
    }
    fail(make_error_code(errc::queue_busy), "lease", object, fmt::format("{}", fmt::join(words, "; ")));
}

std::set<unsigned> queues_of(queue_users const& users)
{
    std::set<unsigned> queues;
    for (auto const& [queue, by] : users)
        queues.insert(queue);
    return queues;
}

queue_plan choose_queues(device_journal& log, nic_device& nic, unsigned wanted, std::chrono::milliseconds timeout)
{
    return *retry(timeout, [&](bool last) -> std::optional<queue_plan> {
        auto const channels = nic.channels();
        auto const users = users_of_queues(*log, nic);
        unsigned const most = std::max(most_rx_queues(channels), channels.rx_queues());
        auto plan = plan_queues(channels.rx_queues(), most, queues_of(users), wanted);
        if (plan)
            return plan;
        // Living owners need the journal's lock, which is ours, to give queues back.
        queue_users living;
        add_owners(living, *log);
        if (last || !plan_queues(channels.rx_queues(), most, queues_of(living), wanted))
            refuse_queues(nic.name(), wanted, most, users);
        return std::nullopt;
    });
}

std::vector<unsigned> lease_queues(device_journal& log, nic_device& nic, lease_environment const& environment,
                                   unsigned wanted)
{
    auto const plan = choose_queues(log, nic, wanted, environment.busy_timeout);
    auto const channels = nic.channels();
    if (plan.rx_queues > channels.rx_queues()) {
        auto const raised = with_rx_queues(channels, plan.rx_queues);
        change_setting(log, nic, setting::channels, {raised.rx, raised.tx, raised.combined});
    }
    log.edit().find(environment.self)->queues = plan.queues;
    log.save();
    return plan.queues;
}

std::unique_ptr<rx_binding> bind_memory(nic_device& nic, std::vector<unsigned> const& queues,
                                        acquisition_request const& request, std::chrono::milliseconds timeout)
{
    return retry(timeout, [&](bool last) -> std::unique_ptr<rx_binding> {
        try {
            if (!request.parts.empty())
                return nic.bind_zcrx(queues, request.parts, request.rx_page_size);
            return nic.bind_rx(queues, request.dmabuf_fd, request.rx_page_size);
        } catch (system_error const& error) {
            bool const busy = error.code() == errno_code(EEXIST) || error.code() == errno_code(EBUSY);
            if (!busy || last)
                throw;
            return nullptr;
        }
    });
}

// Does every queue deliver into our memory now? An interface that is down does not tell.
void check_binding(nic_device& nic, std::vector<unsigned> const& queues, std::optional<std::uint32_t> id,
                   std::vector<std::string>& notices)
{
    auto const present = nic.rx_queues();
    if (present.empty())
        notices.push_back(fmt::format("{} is down: set it up to receive", nic.name()));
    for (unsigned const number : queues) {
        auto const queue =
            std::find_if(present.begin(), present.end(), [number](auto const& one) { return one.id == number; });
        if (queue != present.end() && (id ? queue->dmabuf != id : !queue->io_uring)) {
            fail(EIO, "bind-rx", fmt::format("{} queue {}", nic.name(), number),
                 "the driver accepted the memory but does not use it: a fault of the driver");
        }
    }
}

}  // namespace

acquisition acquire(device_journal& log, nic_device& nic, lease_environment const& environment,
                    acquisition_request const& request, std::vector<std::string>& notices)
{
    log.edit().owners.push_back({environment.self, {}, {}, {}, journal_binding{}});
    log.save();

    split_headers(log, nic);
    if (auto const threshold = nic.rings().hds_threshold; threshold)
        change_setting(log, nic, setting::hds_threshold, {0});
    change_setting(log, nic, setting::ntuple_filters, {1});

    acquisition result;
    auto const table = nic.rss_table();
    result.queues = lease_queues(log, nic, environment, request.rx_queues);
    if (table.empty())
        notices.push_back(
            fmt::format("{} has no RSS table: other traffic may arrive on the leased queues", nic.name()));
    avoid_leased_queues(log, nic, table);

    result.array_tokens = nic.has_array_tokens();
    result.binding = bind_memory(nic, result.queues, request, environment.busy_timeout);
    log.edit().find(environment.self)->binding =
        journal_binding{.id = result.binding->id(), .io_uring = !request.parts.empty()};
    log.save();
    check_binding(nic, result.queues, result.binding->id(), notices);
    return result;
}

namespace {

// Would another rule perhaps do?
bool is_refusal(error_code const& code)
{
    return code == errno_code(EOPNOTSUPP) || code == errno_code(EINVAL) || code == errno_code(EPROTONOSUPPORT) ||
           code == errno_code(ERANGE);
}

// The rule of this owner for just these packets, if it has one.
std::optional<flow_rule> present(device_journal const& log, owner_key const& owner, flow_match const& match)
{
    auto const found = log.find(match);
    if (!found)
        return std::nullopt;
    if (found->owner != owner) {
        fail(EEXIST, "add rule", fmt::format("{} {}", log->device.interface, to_string(match)),
             fmt::format("another gpurx session (process {}) steers the same packets: use another port or address, "
                         "or end it",
                         found->owner.pid));
    }
    return found->entry.rule;
}

// Somebody may have taken the journal away.
void enter(device_journal& log, owner_key const& owner)
{
    if (log.edit().find(owner) != nullptr)
        return;
    log.edit().owners.push_back({owner, {}, {}, {}});
    log.save();
}

void make_rule(device_journal& log, nic_device& nic, owner_key const& owner, flow_rule const& rule)
{
    log.note(owner, {std::nullopt, rule});
    try {
        auto const id = nic.add_rule(rule);
        log.note(owner, {id, rule});
    } catch (system_error const&) {
        log.forget(owner, rule);
        throw;
    }
}

}  // namespace

flow_rule install_rule(device_journal& log, nic_device& nic, owner_key const& owner, flow_match const& match,
                       std::span<steer_target const> targets, std::vector<std::string>& refused, rule_width most)
{
    std::optional<system_error> last;
    enter(log, owner);
    for (auto const& wider : widened(match)) {
        if (most == rule_width::exact ? wider != match : most == rule_width::address && !wider.local)
            break;
        if (auto const known = present(log, owner, wider))
            return *known;
        for (auto const& target : targets) {
            flow_rule rule{wider, target.kind, target.number};
            try {
                make_rule(log, nic, owner, rule);
                return rule;
            } catch (system_error const& error) {
                if (!is_refusal(error.code()))
                    throw;
                refused.push_back(
                    fmt::format("{} cannot steer {} to {} {}: {}", log->device.interface, to_string(wider),
                                rule.kind == rule_target::queue ? "queue" : "RSS context", rule.target, error.what()));
                last = error;
            }
        }
    }
    if (!last)
        fail(EACCES, "add rule", fmt::format("{} {}", log->device.interface, to_string(match)),
             "bind to an address: a rule for a port alone could steer flows of other programs");
    throw system_error{*last};
}

std::uint32_t install_context(device_journal& log, nic_device& nic, owner_key const& owner,
                              std::vector<unsigned> const& queues)
{
    auto const size = nic.rss_table().size();
    if (size == 0)
        fail(EOPNOTSUPP, "add RSS context", log->device.interface);
    enter(log, owner);
    auto& entry = *log.edit().find(owner);
    entry.contexts.push_back({std::nullopt, queues});
    log.save();
    try {
        entry.contexts.back().id = nic.add_rss_context(spread_over(size, queues));
    } catch (system_error const&) {
        entry.contexts.pop_back();
        log.save();
        throw;
    }
    log.save();
    return *entry.contexts.back().id;
}

namespace {

// Of all rules, or contexts, that the journal has numbers of.
template <class Entries>
std::set<std::uint32_t> known_ids(journal const& log, Entries journal_owner::*entries)
{
    std::set<std::uint32_t> ids;
    for (auto const& owner : log.owners) {
        for (auto const& entry : owner.*entries) {
            if (entry.id)
                ids.insert(*entry.id);
        }
    }
    return ids;
}

// Takes an entry of the journal off the NIC. `present` is what the NIC has, `ours` tells what is equal to the entry,
// `known` are the numbers of other entries, which a pending one does not mean.
template <class Installed, class Ours, class Remove>
void remove_one(std::string const& name, std::optional<std::uint32_t> id, std::vector<Installed> const& present,
                std::set<std::uint32_t> const& known, Ours&& ours, Remove&& remove, report& said)
{
    auto const found = std::find_if(present.begin(), present.end(), [&](Installed const& one) {
        return id ? one.id == *id : ours(one) && !known.contains(one.id);
    });
    if (found == present.end()) {
        if (id)
            said.left.push_back(fmt::format("{} was removed by another program", name));
    } else if (!ours(*found)) {
        said.left.push_back(fmt::format("{} was changed by another program and left so", name));
    } else {
        remove(found->id);
        said.done.push_back(fmt::format("{} removed", name));
    }
}

std::string name_of(journal const& log, char const* kind, std::optional<std::uint32_t> id)
{
    return fmt::format("{}: {}{}", log.device.interface, kind, id ? fmt::format(" {}", *id) : "");
}

std::vector<installed_rule> candidates(nic_device& nic, std::optional<std::uint32_t> id)
{
    if (!id)
        return nic.rules();
    auto const one = nic.rule(*id);
    return one ? std::vector{*one} : std::vector<installed_rule>{};
}

template <class Write>
void write(Write&& write_it, report& said)
{
    try {
        write_it();
    } catch (system_error const& error) {
        said.left.emplace_back(error.what());
    }
}

void save(device_journal& log, report& said)
{
    write([&log] { log.save(); }, said);
}

// While an entry is being removed it is pending: whoever reads it after us cannot tell whether that was done.
void remove_from_nic(device_journal& log, nic_device& nic, owner_key const& owner, journal_rule const& entry,
                     report& said)
{
    auto const name = fmt::format("{} ({})", name_of(*log, "rule", entry.id), to_string(entry.rule.match));
    write([&] { log.note(owner, {std::nullopt, entry.rule}); }, said);
    try {
        auto const others = entry.id ? std::set<std::uint32_t>{} : known_ids(*log, &journal_owner::rules);
        remove_one(
            name, entry.id, candidates(nic, entry.id), others,
            [&entry](installed_rule const& one) { return one.rule == entry.rule; },
            [&nic](std::uint32_t number) { nic.remove_rule(number); }, said);
    } catch (system_error const& error) {
        said.left.push_back(fmt::format("{} could not be removed: {}", name, error.what()));
    }
    write([&] { log.forget(owner, entry.rule); }, said);
}

void remove_from_nic(device_journal& log, nic_device& nic, journal_context& entry, report& said)
{
    auto const id = std::exchange(entry.id, std::nullopt);
    auto const name = name_of(*log, "RSS context", id);
    save(log, said);
    try {
        remove_one(
            name, id, nic.rss_contexts(), known_ids(*log, &journal_owner::contexts),
            [&entry](ethtool::rss_context const& one) {
                return one.table == spread_over(one.table.size(), entry.queues);
            },
            [&nic](std::uint32_t number) { nic.remove_rss_context(number); }, said);
    } catch (system_error const& error) {
        said.left.push_back(fmt::format("{} could not be removed: {}", name, error.what()));
    }
}

// Whether the memory of an owner is still bound, which it is for exactly as long as the owner lives. Nothing: cannot be
// told. Only for whoever holds the journal: an owner holds it from before it is recorded until its binding is.
std::optional<bool> is_bound(journal_owner const& owner, nic_device& nic)
{
    if (!owner.binding)
        return std::nullopt;
    if (!owner.binding->id && !owner.binding->io_uring)
        return false;
    try {
        auto const shown = nic.rx_queues();
        if (shown.empty())
            return std::nullopt;  // the interface is down
        // Numbers are not used again before the kernel has been through all of them.
        return std::any_of(shown.begin(), shown.end(), [&owner](auto const& queue) {
            return (owner.binding->io_uring ? queue.io_uring : queue.dmabuf == owner.binding->id) &&
                   std::find(owner.queues.begin(), owner.queues.end(), queue.id) != owner.queues.end();
        });
    } catch (system_error const&) {
        return std::nullopt;
    }
}

// A sentence on an owner that does not live any more; nothing: it lives, or may.
std::optional<std::string> describe_dead(journal_owner const& owner, nic_device& nic,
                                         lease_environment const& environment)
{
    auto const seen = environment.alive(owner.key);
    if (seen ? *seen : is_bound(owner, nic).value_or(true))
        return std::nullopt;
    return fmt::format("process {}{} has ended without undoing its changes", owner.key.pid,
                       seen ? "" : " of another pid namespace");
}

}  // namespace

void remove_rule(device_journal& log, nic_device& nic, owner_key const& owner, flow_rule const& rule, report& said)
{
    auto const found = log.find(rule.match);
    if (found && found->owner == owner && found->entry.rule == rule)
        remove_from_nic(log, nic, owner, found->entry, said);
}

void undo_steering(device_journal& log, nic_device& nic, owner_key const& owner, report& said)
{
    auto* const from = log.edit().find(owner);
    if (from == nullptr)
        return;
    auto const rules = from->rules;
    std::for_each(rules.rbegin(), rules.rend(),
                  [&](auto const& entry) { remove_from_nic(log, nic, owner, entry, said); });
    while (!from->contexts.empty()) {
        remove_from_nic(log, nic, from->contexts.back(), said);
        from->contexts.pop_back();
    }
    save(log, said);
}

void undo_lease(device_journal& log, nic_device& nic, owner_key const& owner, report& said)
{
    log.edit().forget(owner);
    if (log->owners.empty())
        restore_settings(log, nic, said);
    else
        return_unleased_queues(log, nic, said);
    save(log, said);
}

bool forget_if_gone(device_journal& log, nic_device const& nic, report& said)
{
    if (nic.present())
        return false;
    log.edit().owners.clear();
    log.edit().changes.clear();
    save(log, said);
    said.left.push_back(
        fmt::format("{} is gone, or in another network namespace: gpurx restored no setting", log->device.interface));
    return true;
}

void undo_dead(device_journal& log, nic_device& nic, lease_environment const& environment, report& said)
{
    std::vector<std::pair<owner_key, std::string>> dead;
    for (auto const& owner : log->owners) {
        if (auto sentence = describe_dead(owner, nic, environment))
            dead.emplace_back(owner.key, *std::move(sentence));
    }
    for (auto const& [owner, sentence] : dead) {
        said.done.push_back(fmt::format("{}: {}", log->device.interface, sentence));
        undo_steering(log, nic, owner, said);
        undo_lease(log, nic, owner, said);
    }
    if (log->owners.empty() && !log->changes.empty()) {
        restore_settings(log, nic, said);
        save(log, said);
    }
}

}  // namespace gpurx::detail
