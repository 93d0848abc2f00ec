// SPDX-License-Identifier: Apache-2.0
//
// Reports of the flows that the tap has seen: text for people, JSON for programs. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "flow_table.hpp"

namespace gpurx::doctor::tap {

// Of the tap itself.
struct tap_counts {
    std::uint64_t packets = 0;  // that the filter let through, those that were dropped included
    std::uint64_t dropped = 0;  // for which the ring had no room
    std::uint64_t odd = 0;      // that were no TCP after all
    std::chrono::duration<double> time{};
};

// Totals since the beginning: a line for each flow, then one about the tap.
[[nodiscard]] std::string totals(std::string const& interface, flow_table const& seen, tap_counts const& tap);
// Rates between `earlier` and now, which are `interval` apart; the rest as in totals. The busiest flows, at most `most`
// of them.
[[nodiscard]] std::string live(std::string const& interface, flow_table const& seen,
                               std::map<flow_key, flow_counts> const& earlier, std::chrono::duration<double> interval,
                               tap_counts const& tap, std::size_t most);
// {"version", "interface", "seconds", "packets", "dropped", "odd", "others", "flows": [{"local", "remote",
// "bytes_per_second", "packets", "bytes", "gaps", "out_of_order", "retransmitted", "unsplit", "unsplit_bytes",
// "unseen", "missing", "sent", "window", "window_scaled"}]}
[[nodiscard]] std::string json(std::string const& interface, flow_table const& seen, tap_counts const& tap);

}  // namespace gpurx::doctor::tap
