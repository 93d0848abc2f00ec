// SPDX-License-Identifier: Apache-2.0
//
// Which RX queues to set aside, how many channels that takes, and the RSS indirection tables that keep other traffic
// off them: for each value of a packet's hash, the queue it goes to. Decisions only; no I/O.
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
    unsigned rx_queues = 0;        // how many the NIC must have for that; at least as many as it has

    friend bool operator==(queue_plan const&, queue_plan const&) = default;
};

// Picks `wanted` queues from the top, none of them in `taken`. Queue 0 is left to everybody else: some NICs cannot set
// it aside, and other traffic must go somewhere. Where that is not enough, asks for more queues, up to `most`. Nothing:
// it cannot be done.
[[nodiscard]] std::optional<queue_plan> plan_queues(unsigned present, unsigned most, std::set<unsigned> const& taken,
                                                    unsigned wanted);

// The most RX queues that these channels can be raised to.
[[nodiscard]] unsigned most_rx_queues(ethtool::channels const& now) noexcept;
// `now` with `rx_queues` RX queues in all. Precondition: rx_queues <= most_rx_queues(now).
[[nodiscard]] ethtool::channels with_rx_queues(ethtool::channels now, unsigned rx_queues) noexcept;

using indirection_table = std::vector<std::uint32_t>;

// The queues below `queue_count` that no entry points at. Without a table: none.
[[nodiscard]] std::set<unsigned> queues_outside(indirection_table const& table, unsigned queue_count);

// `table` with no entry that points at a queue of `avoid`. Other entries stay as they are; those are shared out evenly
// among the queues that the table uses already, or, if it uses no other, among all below `queue_count`. Empty: there is
// no queue left.
[[nodiscard]] indirection_table avoid_queues(indirection_table const& table, unsigned queue_count,
                                             std::set<unsigned> const& avoid);

// Some NICs have larger tables with more channels. The kernel then repeats a table that somebody has set, and cuts it
// to its size when the channels go (ethtool_rxfh_indir_resize). These two tables are one.
[[nodiscard]] bool same_table(indirection_table const& a, indirection_table const& b);
// Does the kernel make a table of that size of this one? Of none, as a NIC without a table reports it, it makes none.
[[nodiscard]] bool repeats_to(indirection_table const& table, std::size_t size);
// The table, which is not empty, as the kernel makes it with another size; its first entries where that is smaller.
[[nodiscard]] indirection_table repeated(indirection_table const& table, std::size_t size);

// The table that a driver makes for `queue_count` queues when nobody asks for another one.
[[nodiscard]] indirection_table default_table(std::size_t size, unsigned queue_count);

// `size` entries that go round `queues`, which is not empty.
[[nodiscard]] indirection_table spread_over(std::size_t size, std::span<unsigned const> queues);

}  // namespace gpurx::detail
