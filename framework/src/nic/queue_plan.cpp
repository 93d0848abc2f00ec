// SPDX-License-Identifier: Apache-2.0
#include "queue_plan.hpp"

#include <algorithm>

namespace gpurx::detail {

std::optional<queue_plan> plan_queues(unsigned present, unsigned most, std::set<unsigned> const& taken, unsigned wanted)
{
    unsigned count = std::max(present, 1U);
    unsigned free = 0;
    for (unsigned queue = 1; queue < count; ++queue)
        free += taken.contains(queue) ? 0 : 1;
    for (; free < wanted; ++count) {
        if (count >= most)
            return std::nullopt;
        free += taken.contains(count) ? 0 : 1;
    }

    queue_plan plan{{}, count};
    for (unsigned queue = count - 1; plan.queues.size() < wanted; --queue) {
        if (!taken.contains(queue))
            plan.queues.push_back(queue);
    }
    std::reverse(plan.queues.begin(), plan.queues.end());
    return plan;
}

unsigned most_rx_queues(ethtool::channels const& now) noexcept
{
    return now.combined_max != 0 ? now.rx + now.combined_max : now.rx_max;
}

ethtool::channels with_rx_queues(ethtool::channels now, unsigned rx_queues) noexcept
{
    if (now.combined_max != 0)
        now.combined = rx_queues - now.rx;
    else
        now.rx = rx_queues;
    return now;
}

}  // namespace gpurx::detail
