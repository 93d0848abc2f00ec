// SPDX-License-Identifier: Apache-2.0
#include "flow_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <iterator>
#include <string_view>
#include <vector>

namespace gpurx::doctor::tap {

namespace {

struct row {
    flow_key key;
    flow_counts counts;
    double rate = 0;  // bytes a second
};

// "1.2 MiB"
std::string display_size(double amount)
{
    constexpr std::array<std::string_view, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
    std::size_t unit = 0;
    for (; amount >= 1024 && unit + 1 < units.size(); ++unit)
        amount /= 1024;
    return fmt::format("{:.{}f} {}", amount, unit == 0 || amount >= 100 ? 0 : 1, units[unit]);
}

std::string display_window(flow_counts const& counts)
{
    return counts.sent == 0 ? "-"
           : counts.scaled  ? display_size(static_cast<double>(counts.window))
                            : fmt::format("{} x ?", counts.window);
}

void put_head(std::string& text)
{
    fmt::format_to(std::back_inserter(text), "{:<48} {:>12} {:>9} {:>6} {:>8} {:>8} {:>8} {:>12}\n",
                   "flow (remote -> local)", "rate", "packets", "gaps", "reorder", "retrans", "unsplit", "window");
}

void put_row(std::string& text, row const& one)
{
    auto const& counts = one.counts;
    fmt::format_to(std::back_inserter(text), "{:<48} {:>12} {:>9} {:>6} {:>8} {:>8} {:>8} {:>12}\n",
                   to_string(one.key.remote) + " -> " + to_string(one.key.local), display_size(one.rate) + "/s",
                   counts.packets, counts.gaps, counts.out_of_order, counts.retransmitted, counts.unsplit,
                   display_window(counts));
}

void put_tap(std::string& text, std::string const& interface, flow_table const& seen, tap_counts const& tap)
{
    auto out = std::back_inserter(text);
    fmt::format_to(out, "{}: {} packets of {} flows in {:.1f} s; ", interface, tap.packets, seen.flows().size(),
                   tap.time.count());
    if (tap.dropped == 0)
        fmt::format_to(out, "the tap dropped none\n");
    else
        fmt::format_to(out, "the tap dropped {}, so its report is incomplete: a larger --buffer helps\n", tap.dropped);
    std::uint64_t unseen = 0;
    for (auto const& [key, counts] : seen.flows())
        unseen += counts.unseen;
    if (unseen > 0)
        fmt::format_to(out, "{} gaps were the tap's own: the receiver acknowledged bytes that the tap had not seen\n",
                       unseen);
    if (seen.others() > 0)
        fmt::format_to(out, "{} packets of more than {} flows are not counted\n", seen.others(),
                       flow_table::most_flows);
    if (tap.odd > 0)
        fmt::format_to(out, "{} packets had no whole TCP header\n", tap.odd);
}

double rate_of(flow_counts const& counts)
{
    auto const time = std::chrono::duration<double>{counts.last - counts.first}.count();
    return time > 0 ? static_cast<double>(counts.bytes) / time : 0;
}

boost::json::object to_json(flow_key const& key, flow_counts const& counts)
{
    return {{"local", to_string(key.local)},
            {"remote", to_string(key.remote)},
            {"bytes_per_second", rate_of(counts)},
            {"packets", counts.packets},
            {"bytes", counts.bytes},
            {"gaps", counts.gaps},
            {"out_of_order", counts.out_of_order},
            {"retransmitted", counts.retransmitted},
            {"unsplit", counts.unsplit},
            {"unsplit_bytes", counts.unsplit_bytes},
            {"unseen", counts.unseen},
            {"missing", counts.missing},
            {"sent", counts.sent},
            {"window", counts.window},
            {"window_scaled", counts.scaled}};
}

}  // namespace

std::string totals(std::string const& interface, flow_table const& seen, tap_counts const& tap)
{
    std::string text;
    put_head(text);
    for (auto const& [key, counts] : seen.flows())
        put_row(text, {key, counts, rate_of(counts)});
    put_tap(text, interface, seen, tap);
    return text;
}

std::string live(std::string const& interface, flow_table const& seen, std::map<flow_key, flow_counts> const& earlier,
                 std::chrono::duration<double> interval, tap_counts const& tap, std::size_t most)
{
    std::vector<row> rows;
    for (auto const& [key, counts] : seen.flows()) {
        auto const before = earlier.find(key);
        auto const came = counts.bytes - (before != earlier.end() ? before->second.bytes : 0);
        rows.push_back({key, counts, static_cast<double>(came) / interval.count()});
    }
    std::ranges::stable_sort(rows, std::ranges::greater{}, &row::rate);
    std::string text;
    put_head(text);
    for (std::size_t i = 0; i < std::min(most, rows.size()); ++i)
        put_row(text, rows[i]);
    if (rows.size() > most)
        fmt::format_to(std::back_inserter(text), "and {} more\n", rows.size() - most);
    put_tap(text, interface, seen, tap);
    return text;
}

std::string json(std::string const& interface, flow_table const& seen, tap_counts const& tap)
{
    boost::json::array flows;
    for (auto const& [key, counts] : seen.flows())
        flows.push_back(to_json(key, counts));
    boost::json::object const all{
        {"version", 1},           {"interface", interface}, {"seconds", tap.time.count()}, {"packets", tap.packets},
        {"dropped", tap.dropped}, {"odd", tap.odd},         {"others", seen.others()},     {"flows", std::move(flows)}};
    return boost::json::serialize(all) + "\n";
}

}  // namespace gpurx::doctor::tap
