// SPDX-License-Identifier: Apache-2.0
#include "queue_plan.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

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

std::set<unsigned> queues_outside(indirection_table const& table, unsigned queue_count)
{
    std::set<unsigned> outside;
    for (unsigned queue = 0; !table.empty() && queue < queue_count; ++queue)
        outside.insert(queue);
    for (unsigned const queue : table)
        outside.erase(queue);
    return outside;
}

indirection_table avoid_queues(indirection_table const& table, unsigned queue_count, std::set<unsigned> const& avoid)
{
    std::map<unsigned, std::size_t> load;  // entries per queue that may take more
    for (unsigned const queue : table) {
        if (!avoid.contains(queue))
            ++load[queue];
    }
    if (load.empty()) {
        for (unsigned queue = 0; queue < queue_count; ++queue) {
            if (!avoid.contains(queue))
                load[queue] = 0;
        }
    }
    if (load.empty())
        return {};

    indirection_table result = table;
    for (auto& queue : result) {
        if (!avoid.contains(queue))
            continue;
        auto const least = std::min_element(load.begin(), load.end(),
                                            [](auto const& a, auto const& b) { return a.second < b.second; });
        queue = least->first;
        ++least->second;
    }
    return result;
}

bool same_table(indirection_table const& a, indirection_table const& b)
{
    if (a.empty() || b.empty())
        return a.empty() && b.empty();
    auto const& [small, large] = a.size() < b.size() ? std::tie(a, b) : std::tie(b, a);
    return repeats_to(small, large.size()) && large == repeated(small, large.size());
}

bool repeats_to(indirection_table const& table, std::size_t size)
{
    return !table.empty() && size % table.size() == 0;
}

indirection_table repeated(indirection_table const& table, std::size_t size)
{
    indirection_table result(size);
    for (std::size_t i = 0; i < size; ++i)
        result[i] = table[i % table.size()];
    return result;
}

indirection_table default_table(std::size_t size, unsigned queue_count)
{
    std::vector<unsigned> all(queue_count);
    std::iota(all.begin(), all.end(), 0U);
    return spread_over(size, all);
}

indirection_table spread_over(std::size_t size, std::span<unsigned const> queues)
{
    indirection_table result(size);
    for (std::size_t i = 0; i < size; ++i)
        result[i] = queues[i % queues.size()];
    return result;
}

}  // namespace gpurx::detail
