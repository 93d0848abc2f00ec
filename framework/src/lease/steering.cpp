// SPDX-License-Identifier: Apache-2.0
#include "steering.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/failure.hpp"
#include "queue_plan.hpp"

namespace gpurx::detail {

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
             "name an address: a rule for a port alone could reach others");
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

}  // namespace gpurx::detail
