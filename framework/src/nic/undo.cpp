// SPDX-License-Identifier: Apache-2.0
#include "undo.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include <gpurx/error.hpp>

#include "rss.hpp"

namespace gpurx::detail {

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

std::string name_of(journal const& log, journal_rule const& entry)
{
    return fmt::format("{}: rule {}({})", log.device.interface, entry.id ? fmt::format("{} ", *entry.id) : "",
                       to_string(entry.rule.match));
}

void remove_from_nic(journal const& log, nic_device& nic, journal_rule const& entry, report& said)
{
    auto const name = name_of(log, entry);
    try {
        auto const known = known_ids(log, &journal_owner::rules);
        auto const present = nic.rules();
        auto const found = std::find_if(present.begin(), present.end(), [&](installed_rule const& one) {
            return entry.id ? one.id == *entry.id : one.rule == entry.rule && !known.contains(one.id);
        });
        if (found == present.end()) {
            if (entry.id)
                said.left.push_back(fmt::format("{} was removed by somebody else", name));
        } else if (found->rule != entry.rule) {
            said.left.push_back(fmt::format("{} was replaced by somebody else and left so", name));
        } else {
            nic.remove_rule(found->id);
            said.done.push_back(fmt::format("{} removed", name));
        }
    } catch (system_error const& error) {
        said.left.push_back(fmt::format("{} could not be removed: {}", name, error.what()));
    }
}

void remove_from_nic(journal const& log, nic_device& nic, journal_context const& entry, report& said)
{
    auto const name =
        fmt::format("{}: RSS context{}", log.device.interface, entry.id ? fmt::format(" {}", *entry.id) : "");
    try {
        auto const known = known_ids(log, &journal_owner::contexts);
        auto const present = nic.rss_contexts();
        auto const ours = [&entry](ethtool::rss_context const& one) {
            return one.table == spread_over(one.table.size(), entry.queues);
        };
        auto const found = std::find_if(present.begin(), present.end(), [&](ethtool::rss_context const& one) {
            return entry.id ? one.id == *entry.id : ours(one) && !known.contains(one.id);
        });
        if (found == present.end()) {
            if (entry.id)
                said.left.push_back(fmt::format("{} was removed by somebody else", name));
        } else if (!ours(*found)) {
            said.left.push_back(fmt::format("{} was changed by somebody else and left so", name));
        } else {
            nic.remove_rss_context(found->id);
            said.done.push_back(fmt::format("{} removed", name));
        }
    } catch (system_error const& error) {
        said.left.push_back(fmt::format("{} could not be removed: {}", name, error.what()));
    }
}

void save(device_journal& log, report& said)
{
    try {
        log.save();
    } catch (system_error const& error) {
        said.left.push_back(error.what());
    }
}

}  // namespace

void remove_rule(device_journal& log, nic_device& nic, owner_key const& owner, flow_rule const& rule, report& said)
{
    auto* const from = log->find(owner);
    if (from == nullptr)
        return;
    auto const entry =
        std::find_if(from->rules.begin(), from->rules.end(), [&rule](auto const& one) { return one.rule == rule; });
    if (entry == from->rules.end())
        return;
    remove_from_nic(*log, nic, *entry, said);
    from->rules.erase(entry);
    save(log, said);
}

void undo_steering(device_journal& log, nic_device& nic, owner_key const& owner, report& said)
{
    auto* const from = log->find(owner);
    if (from == nullptr)
        return;
    while (!from->rules.empty()) {
        remove_from_nic(*log, nic, from->rules.back(), said);
        from->rules.pop_back();
    }
    while (!from->contexts.empty()) {
        remove_from_nic(*log, nic, from->contexts.back(), said);
        from->contexts.pop_back();
    }
    save(log, said);
}

void undo_claim(device_journal& log, nic_device& nic, owner_key const& owner, report& said)
{
    log->forget(owner);
    if (log->owners.empty())
        restore_settings(log, nic, said);
    else
        return_unclaimed_queues(log, nic, said);
    save(log, said);
}

bool forget_if_gone(device_journal& log, nic_device const& nic, report& said)
{
    if (nic.present())
        return false;
    log->owners.clear();
    log->changes.clear();
    save(log, said);
    said.left.push_back(
        fmt::format("{} is gone, or in another network namespace: nothing was set back", log->device.interface));
    return true;
}

void undo_dead(device_journal& log, nic_device& nic, claim_environment const& environment, report& said)
{
    std::vector<owner_key> dead;
    for (auto const& owner : log->owners) {
        if (!environment.alive(owner.key))
            dead.push_back(owner.key);
    }
    for (auto const& owner : dead) {
        said.done.push_back(
            fmt::format("{}: process {} has ended without undoing its changes", log->device.interface, owner.pid));
        undo_steering(log, nic, owner, said);
        undo_claim(log, nic, owner, said);
    }
    if (log->owners.empty() && !log->changes.empty()) {
        restore_settings(log, nic, said);
        save(log, said);
    }
}

}  // namespace gpurx::detail
