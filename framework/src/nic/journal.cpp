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

std::string rule_line(journal_rule const& entry)
{
    auto const& match = entry.rule.match;
    auto const& remote = match.remote;
    return fmt::format("rule {} {} {} {} {} {} {} {}\n", number_or_pending(entry.id), match.v6 ? "tcp6" : "tcp4",
                       match.local ? match.local->to_string() : "*", match.local_port,
                       remote ? remote->address().to_string() : "*", remote ? fmt::to_string(remote->port()) : "*",
                       entry.rule.kind == rule_target::queue ? "queue" : "context", entry.rule.target);
}

}  // namespace

std::string_view to_string(setting value) noexcept
{
    return setting_names[static_cast<std::size_t>(value)];
}

setting_change* journal::find(setting what) noexcept
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
    if (auto* const present = find(change.what)) {
        *present = std::move(change);
        return;
    }
    auto const place =
        std::find_if(changes.begin(), changes.end(), [&change](auto const& other) { return other.what > change.what; });
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
            text += rule_line(rule);
        for (auto const& context : owner.contexts)
            fmt::format_to(out, "context {} {}\n", number_or_pending(context.id), fmt::join(context.queues, " "));
    }
    text += "end\n";
    return text;
}

}  // namespace gpurx::detail
