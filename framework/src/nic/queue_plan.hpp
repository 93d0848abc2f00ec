// SPDX-License-Identifier: Apache-2.0
//
// Which RX queues to set aside, and how many channels that takes. Decisions only; no I/O.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "ethtool.hpp"

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

}  // namespace gpurx::detail
