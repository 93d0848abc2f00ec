// SPDX-License-Identifier: Apache-2.0
#include "journal.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace gpurx::detail {

namespace {

constexpr std::array<std::string_view, 6> setting_names{"rx-gro-hw",      "tcp-data-split", "hds-thresh",
                                                        "ntuple-filters", "channels",       "rss-table"};

std::string number_or_pending(std::optional<std::uint32_t> const& id)
{
    return id ? fmt::to_string(*id) : "pending";
}

std::string rule_text(flow_rule const& rule)
{
    auto const& match = rule.match;
    auto const& remote = match.remote;
    return fmt::format("{} {} {} {} {} {} {}\n", match.v6 ? "tcp6" : "tcp4",
                       match.local ? match.local->to_string() : "*", match.local_port,
                       remote ? remote->address().to_string() : "*", remote ? fmt::to_string(remote->port()) : "*",
                       rule.kind == rule_target::queue ? "queue" : "context", rule.target);
}

}  // namespace

std::string_view to_string(setting value) noexcept
{
    return setting_names[static_cast<std::size_t>(value)];
}

setting_change const* journal::find(setting what) const noexcept
{
    auto const found = std::find_if(changes.begin(), changes.end(), [what](auto const& c) { return c.what == what; });
    return found != changes.end() ? &*found : nullptr;
}

journal_owner* journal::find(owner_key const& key) noexcept
{
    auto const found = std::find_if(owners.begin(), owners.end(), [&key](auto const& o) { return o.key == key; });
    return found != owners.end() ? &*found : nullptr;
}

void journal::record(setting_change change)
{
    auto const place = std::find_if(changes.begin(), changes.end(),
                                    [&change](auto const& other) { return other.what >= change.what; });
    if (place != changes.end() && place->what == change.what)
        *place = std::move(change);
    else
        changes.insert(place, std::move(change));
}

void journal::forget(setting what)
{
    std::erase_if(changes, [what](auto const& change) { return change.what == what; });
}

void journal::forget(owner_key const& key)
{
    std::erase_if(owners, [&key](auto const& owner) { return owner.key == key; });
}

std::set<unsigned> journal::claimed_queues() const
{
    std::set<unsigned> all;
    for (auto const& owner : owners)
        all.insert(owner.queues.begin(), owner.queues.end());
    return all;
}

std::string serialise(journal const& from)
{
    std::string text = fmt::format("gpurx-journal 1\nboot {}\ndevice {} {} {}\n", from.device.boot_id,
                                   from.device.interface, from.device.ifindex, from.device.netns);
    auto const out = std::back_inserter(text);
    for (auto const& change : from.changes) {
        fmt::format_to(out, "change {} {} -> {}\n", to_string(change.what), fmt::join(change.original, " "),
                       fmt::join(change.ours, " "));
    }
    for (auto const& owner : from.owners) {
        fmt::format_to(out, "owner {} {} {} {}\n", owner.key.pid, owner.key.start_time, owner.key.pid_namespace,
                       owner.key.session);
        if (owner.binding)
            fmt::format_to(out, "binding {}\n", number_or_pending(owner.binding->id));
        if (!owner.queues.empty())
            fmt::format_to(out, "queues {}\n", fmt::join(owner.queues, " "));
        for (auto const& rule : owner.rules)
            fmt::format_to(out, "rule {} {}", number_or_pending(rule.id), rule_text(rule.rule));
        for (auto const& context : owner.contexts)
            fmt::format_to(out, "context {} {}\n", number_or_pending(context.id), fmt::join(context.queues, " "));
    }
    text += "end\n";
    return text;
}

std::string serialise(journal_record const& from)
{
    return fmt::format("at {} {} {}", from.owner, from.gone ? "gone" : number_or_pending(from.entry.id),
                       rule_text(from.entry.rule));
}

bool apply(journal_record const& record, journal& to)
{
    if (record.owner >= to.owners.size())
        return false;
    auto& rules = to.owners[record.owner].rules;
    auto const found =
        std::find_if(rules.begin(), rules.end(), [&record](auto const& one) { return one.rule == record.entry.rule; });
    if (record.gone && found == rules.end())
        return false;
    if (record.gone)
        rules.erase(found);
    else if (found == rules.end())
        rules.push_back(record.entry);
    else
        found->id = record.entry.id;
    return true;
}

}  // namespace gpurx::detail
