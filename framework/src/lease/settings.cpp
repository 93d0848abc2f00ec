// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <iterator>
#include <utility>

#include <gpurx/error.hpp>

#include "base/failure.hpp"
#include "queue_plan.hpp"

namespace gpurx::detail {

namespace {

using ethtool::data_split;

// In the journal only: the driver reported "on" though nobody had asked for it.
constexpr std::uint32_t automatically_on = 3;

setting_value value_of(data_split split)
{
    return {static_cast<std::uint32_t>(split)};
}

setting_value value_of(ethtool::channels const& counts)
{
    return {counts.rx, counts.tx, counts.combined};
}

void write_channels(nic_device& nic, setting_value const& value)
{
    auto counts = nic.channels();
    counts.rx = value[0];
    counts.tx = value[1];
    counts.combined = value[2];
    nic.set_channels(counts);
}

void write_plain(nic_device& nic, setting what, setting_value const& value)
{
    if (what == setting::hds_threshold)
        nic.set_hds_threshold(value[0]);
    else if (what == setting::ntuple_filters)
        nic.set_feature(ethtool::feature::ntuple_filters, value[0] != 0);
    else if (what == setting::hardware_gro)
        nic.set_feature(ethtool::feature::hardware_gro, value[0] != 0);
    else if (what == setting::channels)
        write_channels(nic, value);
    else if (what == setting::rx_ring)
        nic.set_rx_ring(value[0]);
    else if (what == setting::link)
        nic.set_up(value[0] != 0);
}

// "Automatic" first: most likely it was that. Some drivers then keep header split as we made it; those are told.
void put_back_split(nic_device& nic, std::uint32_t original)
{
    auto const off = static_cast<std::uint32_t>(data_split::off);
    try {
        nic.set_data_split(data_split::automatic);
    } catch (system_error const&) {
        if (original != off)
            throw;
    }
    if (original == off && nic.rings().split != data_split::off)
        nic.set_data_split(data_split::off);
}

// Is this the driver's own choice for the channels that there are?
bool is_default(nic_device& nic, indirection_table const& table)
{
    return table == default_table(table.size(), nic.channels().rx_queues());
}

// Was the table the driver's own choice before us, and is it again? It need not look the same,
// while the channels differ.
bool is_default_again(device_journal& log, nic_device& nic, setting_value const& original, setting_value const& now)
{
    auto const* const channels = log->find(setting::channels);
    return is_default(nic, now) &&
           (channels != nullptr
                ? original == default_table(original.size(), channels->original[0] + channels->original[2])
                : is_default(nic, original));
}

// A table that is the driver's own choice is given back to the driver, so that it follows the channels again.
void put_back_table(nic_device& nic, indirection_table const& original)
{
    if (is_default(nic, original) || original.size() != nic.rss_table().size())
        nic.set_rss_table({});
    else
        nic.set_rss_table(original);
}

void put_back(nic_device& nic, setting_change const& change)
{
    if (change.what == setting::data_split)
        put_back_split(nic, change.original[0]);
    else if (change.what == setting::rss_table)
        put_back_table(nic, change.original);
    else
        write_plain(nic, change.what, change.original);
}

// Switching the filters off would take rules with it that are not ours.
bool others_need(nic_device& nic, setting what)
{
    return what == setting::ntuple_filters && !nic.rules().empty();
}

// True if it was put back.
bool restore_setting(device_journal& log, nic_device& nic, setting what, report& said)
{
    auto const* const found = log->find(what);
    if (found == nullptr)
        return false;
    setting_change const change = *found;
    auto const subject = fmt::format("{}: {}", log->device.interface, to_string(what));
    try {
        auto const now = read_setting(nic, what);
        // A table that reads as it did may still be kept by us rather than by the driver.
        bool const ours = now == change.ours || (what == setting::rss_table &&
                                                 (same_table(now, change.ours) || same_table(now, change.original) ||
                                                  is_default_again(log, nic, change.original, now)));
        if (ours && others_need(nic, what)) {
            said.left.push_back(fmt::format("{} stays on: other programs have rules", subject));
            return false;
        }
        if (ours) {
            put_back(nic, change);
            if (now != change.original)
                said.done.push_back(fmt::format("{} restored to {}", subject, describe(what, change.original)));
        } else if (now != change.original) {
            said.left.push_back(fmt::format("{} was changed by another program to {} and left so (before gpurx: {})",
                                            subject, describe(what, now), describe(what, change.original)));
        }
        log.edit().forget(what);
        return ours;
    } catch (system_error const& error) {
        said.left.push_back(
            fmt::format("{} could not be restored to {}: {}", subject, describe(what, change.original), error.what()));
        return false;
    }
}

// The driver's choice depends on the channels: what is its choice, and what fits, may be another table now.
void finish_table(nic_device& nic, setting_value const& original, std::string const& interface, report& said)
{
    try {
        if (is_default(nic, original) || nic.rss_table() != original)
            put_back_table(nic, original);
    } catch (system_error const& error) {
        said.left.push_back(fmt::format("{}: rss-table could not be restored: {}", interface, error.what()));
    }
}

void ask_for_split(device_journal& log, nic_device& nic)
{
    auto const on = value_of(data_split::on);
    auto const reported = read_setting(nic, setting::data_split);
    std::optional<setting_change> before;  // what a session before us made of it, if it still is so
    if (auto const* const present = log->find(setting::data_split); present != nullptr && reported == on)
        before = *present;

    // Whether it is on by somebody's wish or by the driver's choice shows only when we wish it, too. Until then the
    // more likely is recorded.
    setting_change const made{setting::data_split, reported == on ? setting_value{automatically_on} : reported, on};
    auto const keep = [&log](std::optional<setting_change> const& change) {
        if (change)
            log.edit().record(*change);
        else
            log.edit().forget(setting::data_split);
        log.save();
    };
    keep(before ? before : made);
    try {
        bool const changed = nic.set_data_split(data_split::on);
        keep(changed ? made : before);
    } catch (system_error const&) {
        keep(before);
        throw;
    }
}

}  // namespace

setting_value read_setting(nic_device& nic, setting what)
{
    switch (what) {
        case setting::data_split:
            return value_of(nic.rings().split);
        case setting::hds_threshold: {
            auto const threshold = nic.rings().hds_threshold;
            return threshold ? setting_value{*threshold} : setting_value{};
        }
        case setting::hardware_gro:
            return {nic.feature(ethtool::feature::hardware_gro).active ? 1U : 0U};
        case setting::ntuple_filters:
            return {nic.feature(ethtool::feature::ntuple_filters).active ? 1U : 0U};
        case setting::channels:
            return value_of(nic.channels());
        case setting::rss_table:
            return nic.rss_table();
        case setting::rx_ring: {
            auto const frames = nic.rings().rx_frames;
            return frames ? setting_value{*frames} : setting_value{};
        }
        case setting::link:
            return {nic.is_up() ? 1U : 0U};
    }
    return {};
}

std::string describe(setting what, setting_value const& value)
{
    constexpr std::size_t shown = 16;
    static constexpr std::string_view splits[]{"automatic", "off", "on", "automatic"};
    if (value.empty())
        return "nothing";
    switch (what) {
        case setting::data_split:
            return std::string{splits[std::min<std::size_t>(value[0], automatically_on)]};
        case setting::hds_threshold:
            return fmt::format("{} bytes", value[0]);
        case setting::hardware_gro:
        case setting::ntuple_filters:
            return value[0] != 0 ? "on" : "off";
        case setting::rx_ring:
            return fmt::format("{} frames", value[0]);
        case setting::link:
            return value[0] != 0 ? "up" : "down";
        case setting::channels:
            return fmt::format("{} RX, {} TX, {} combined", value.at(0), value.at(1), value.at(2));
        case setting::rss_table:
            return fmt::format(
                "{}{}",
                fmt::join(value.begin(), value.begin() + static_cast<std::ptrdiff_t>(std::min(shown, value.size())),
                          " "),
                value.size() > shown ? " ..." : "");
    }
    return {};
}

void split_headers(device_journal& log, nic_device& nic)
{
    try {
        ask_for_split(log, nic);
    } catch (system_error const& error) {
        bool const refused = error.code() == errno_code(EINVAL) || error.code() == errno_code(EOPNOTSUPP);
        auto const gro = nic.feature(ethtool::feature::hardware_gro);
        if (!refused || gro.active || !gro.changeable)
            throw;
        auto const refusal = std::current_exception();
        try {
            change_setting(log, nic, setting::hardware_gro, {1});
        } catch (system_error const&) {
            std::rethrow_exception(refusal);  // it was not for want of that
        }
        ask_for_split(log, nic);
    }
}

void change_setting(device_journal& log, nic_device& nic, setting what, setting_value const& wanted)
{
    auto const now = read_setting(nic, what);
    if (now == wanted)
        return;
    auto const* const present = log->find(what);
    bool const still_ours = present != nullptr && now == present->ours;
    log.edit().record({what, still_ours ? present->original : now, wanted});
    log.save();
    write_plain(nic, what, wanted);
}

std::set<unsigned> reserved_queues(std::vector<setting_change> const& changes, setting_value const& table,
                                   unsigned rx_queues)
{
    auto const* before = &table;
    for (auto const& change : changes) {
        if (change.what == setting::rss_table && same_table(table, change.ours))
            before = &change.original;
        else if (change.what == setting::channels)  // what gpurx has added nobody has reserved
            rx_queues = std::min(rx_queues, change.original[0] + change.original[2]);
    }
    return queues_outside(*before, rx_queues);
}

void avoid_leased_queues(device_journal& log, nic_device& nic, setting_value const& before)
{
    if (before.empty())
        return;
    auto const now = nic.rss_table();
    auto const* const present = log->find(setting::rss_table);
    bool const still_ours = present != nullptr && same_table(now, present->ours);
    setting_value const original = present == nullptr ? before : still_ours ? present->original : now;
    auto const base = repeats_to(original, now.size()) ? repeated(original, now.size()) : now;

    auto const wanted = avoid_queues(base, nic.channels().rx_queues(), log->leased_queues());
    if (wanted.empty() || (present != nullptr && now == wanted))
        return;
    // Also where the table is so already: a table that nobody has set follows the channels, on to our queues.
    log.edit().record({setting::rss_table, original, wanted});
    log.save();
    nic.set_rss_table(wanted);
}

void return_unleased_queues(device_journal& log, nic_device& nic, report& said)
{
    auto const* const present = log->find(setting::rss_table);
    if (present == nullptr)
        return;
    try {
        auto const now = nic.rss_table();
        auto const original = present->original;
        if (!same_table(now, present->ours) || !repeats_to(original, now.size()))
            return;
        auto const wanted =
            avoid_queues(repeated(original, now.size()), nic.channels().rx_queues(), log->leased_queues());
        if (wanted.empty() || wanted == now)
            return;
        log.edit().record({setting::rss_table, original, wanted});
        log.save();
        nic.set_rss_table(wanted);
        said.done.push_back(
            fmt::format("{}: rss-table set to {}", log->device.interface, describe(setting::rss_table, wanted)));
    } catch (system_error const& error) {
        said.left.push_back(
            fmt::format("{}: queues could not be returned to RSS: {}", log->device.interface, error.what()));
    }
}

void restore_settings(device_journal& log, nic_device& nic, report& said)
{
    auto const* const change = log->find(setting::rss_table);
    auto const table = change != nullptr ? change->original : setting_value{};
    bool const table_put_back = restore_setting(log, nic, setting::rss_table, said);
    bool const channels_put_back = restore_setting(log, nic, setting::channels, said);
    if (table_put_back && channels_put_back)
        finish_table(nic, table, log->device.interface, said);
    restore_setting(log, nic, setting::ntuple_filters, said);
    restore_setting(log, nic, setting::hds_threshold, said);
    restore_setting(log, nic, setting::data_split, said);
    restore_setting(log, nic, setting::hardware_gro, said);
    restore_setting(log, nic, setting::link, said);
    restore_setting(log, nic, setting::rx_ring, said);
}

}  // namespace gpurx::detail
