// SPDX-License-Identifier: Apache-2.0
//
// The choice of RX queues to reserve, the number of channels for them, and the RSS indirection tables that keep other
// traffic off them. A table has a queue for each value of a packet's hash. Decisions only; no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "nic/families.hpp"

namespace gpurx::detail {

struct queue_plan {
    std::vector<unsigned> queues;  // ascending
    unsigned rx_queues = 0;        // queues that the NIC needs for that; at least as many as it has

    friend bool operator==(queue_plan const&, queue_plan const&) = default;
};

// Picks `wanted` queues from the top, none of them in `taken`. Queue 0 stays for other traffic, which needs a queue;
// some NICs cannot reserve it either. If the queues do not suffice, the plan has more queues, up to `most`. Empty if
// there is no such plan.
[[nodiscard]] std::optional<queue_plan> plan_queues(unsigned present, unsigned most, std::set<unsigned> const& taken,
                                                    unsigned wanted);

// Returns the most RX queues that these channels can be raised to.
[[nodiscard]] unsigned most_rx_queues(ethtool::channels const& now) noexcept;
// Returns `now` with `rx_queues` RX queues in total. Precondition: rx_queues <= most_rx_queues(now).
[[nodiscard]] ethtool::channels with_rx_queues(ethtool::channels now, unsigned rx_queues) noexcept;

using indirection_table = std::vector<std::uint32_t>;

// Returns the queues below `queue_count` that no entry points at; none without a table.
[[nodiscard]] std::set<unsigned> queues_outside(indirection_table const& table, unsigned queue_count);

// Returns `table` without entries that point at a queue of `avoid`. Other entries stay. The replaced entries are spread
// evenly over the other queues of the table or, if it has none, over all below `queue_count`. Empty if no queue is
// left.
[[nodiscard]] indirection_table avoid_queues(indirection_table const& table, unsigned queue_count,
                                             std::set<unsigned> const& avoid);

// Returns whether two tables are the same, regardless of repetition. Some NICs have larger tables with more channels.
// The kernel then repeats a table that was set, and cuts it to its size when the channels are removed
// (ethtool_rxfh_indir_resize).
[[nodiscard]] bool same_table(indirection_table const& a, indirection_table const& b);
// Returns whether the kernel makes a table of that size of this one. An empty table, which a NIC without a table
// reports, stays empty.
[[nodiscard]] bool repeats_to(indirection_table const& table, std::size_t size);
// Returns the table with another size, as the kernel makes it; its first entries if the size is smaller. Precondition:
// the table is not empty.
[[nodiscard]] indirection_table repeated(indirection_table const& table, std::size_t size);

// Returns a driver's default table for `queue_count` queues.
[[nodiscard]] indirection_table default_table(std::size_t size, unsigned queue_count);

// Returns `size` entries that repeat `queues`. Precondition: `queues` is not empty.
[[nodiscard]] indirection_table spread_over(std::size_t size, std::span<unsigned const> queues);

}  // namespace gpurx::detail
