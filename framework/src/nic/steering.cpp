// SPDX-License-Identifier: Apache-2.0
#include "steering.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "failure.hpp"
#include "rss.hpp"

namespace gpurx::detail {

namespace {

// Would another rule perhaps do?
bool is_refusal(error_code const& code)
{
    return code == errno_code(EOPNOTSUPP) || code == errno_code(EINVAL) || code == errno_code(EPROTONOSUPPORT) ||
           code == errno_code(ERANGE);
}

void check_conflict(journal const& log, owner_key const& owner, flow_match const& match)
{
    for (auto const& other : log.owners) {
        bool const same = std::any_of(other.rules.begin(), other.rules.end(),
                                      [&match](auto const& entry) { return entry.rule.match == match; });
        if (same && other.key != owner) {
            fail(EEXIST, "add rule", fmt::format("{} {}", log.device.interface, to_string(match)),
                 fmt::format("another gpurx session (process {}) steers the same packets: use another port or address, "
                             "or end it",
                             other.key.pid));
        }
    }
}

journal_owner& entry_of(device_journal& log, owner_key const& owner)
{
    if (auto* const present = log->find(owner))
        return *present;
    return log->owners.emplace_back(journal_owner{owner, {}, {}, {}});
}

void make_rule(device_journal& log, nic_device& nic, owner_key const& owner, flow_rule const& rule)
{
    auto& entry = entry_of(log, owner);
    entry.rules.push_back({std::nullopt, rule});
    log.save();
    try {
        entry.rules.back().id = nic.add_rule(rule);
    } catch (system_error const&) {
        entry.rules.pop_back();
        log.save();
        throw;
    }
    log.save();
}

}  // namespace

flow_rule install_rule(device_journal& log, nic_device& nic, owner_key const& owner, flow_match const& match,
                       std::span<steer_target const> targets, std::vector<std::string>& refused)
{
    std::optional<system_error> last;
    for (auto const& wider : widened(match)) {
        check_conflict(*log, owner, wider);
        auto const& own = entry_of(log, owner).rules;
        auto const present =
            std::find_if(own.begin(), own.end(), [&wider](auto const& one) { return one.rule.match == wider; });
        if (present != own.end())
            return present->rule;
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
    throw system_error{*last};
}

std::uint32_t install_context(device_journal& log, nic_device& nic, owner_key const& owner,
                              std::vector<unsigned> const& queues)
{
    auto const size = nic.rss_table().size();
    if (size == 0)
        fail(EOPNOTSUPP, "add RSS context", log->device.interface);
    auto& entry = entry_of(log, owner);
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
