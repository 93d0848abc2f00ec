// SPDX-License-Identifier: Apache-2.0
#include "fix.hpp"

#include <fmt/format.h>

#include <gpurx/error.hpp>
#include <optional>
#include <utility>

#include "lease/queue_lease.hpp"
#include "lease/settings.hpp"

namespace gpurx::doctor {

namespace {

void change(detail::nic_device& nic, detail::lease_environment const& own, detail::setting what, std::uint32_t value,
            fix_report& said)
{
    detail::journal_cache nothing;
    detail::device_journal log{own, nic, nothing};
    auto const before = detail::read_setting(nic, what);
    auto const* const found = log->find(what);
    auto const earlier = found != nullptr ? std::optional{*found} : std::nullopt;
    try {
        detail::change_setting(log, nic, what, {value});
    } catch (system_error const&) {
        // The kernel refused, and nothing has changed.
        if (earlier)
            log.edit().record(*earlier);
        else
            log.edit().forget(what);
        log.save();
        throw;
    }
    said.done.push_back(fmt::format("{}: {} set from {} to {}", nic.name(), to_string(what),
                                    detail::describe(what, before), detail::describe(what, {value})));
}

void apply(fix_action const& what, detail::nic_device& nic, detail::lease_environment const& own,
           detail::lease_environment const& sessions, fix_report& said)
{
    switch (what.what) {
        case fix_action::kind::recover:
            for (auto& sentence : detail::queue_lease::recover(nic, sessions))
                said.done.push_back(std::move(sentence));
            break;
        case fix_action::kind::link_up:
            change(nic, own, detail::setting::link, what.value, said);
            break;
        case fix_action::kind::rx_ring:
            change(nic, own, detail::setting::rx_ring, what.value, said);
            break;
    }
}

}  // namespace

fix_report apply_fixes(std::vector<finding> const& findings, detail::nic_device& nic,
                       detail::lease_environment const& own, detail::lease_environment const& sessions)
{
    fix_report said;
    for (auto const& found : findings) {
        if (!found.fix)
            continue;
        try {
            apply(*found.fix, nic, own, sessions, said);
        } catch (system_error const& error) {
            said.failed.emplace_back(error.what());
        }
    }
    return said;
}

fix_report undo(detail::nic_device& nic, detail::lease_environment const& own)
{
    detail::journal_cache nothing;
    detail::device_journal log{own, nic, nothing};
    detail::report said;
    detail::restore_settings(log, nic, said);
    log.save();
    return {std::move(said.done), std::move(said.left)};
}

}  // namespace gpurx::doctor
