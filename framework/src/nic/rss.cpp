// SPDX-License-Identifier: Apache-2.0
#include "rss.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace gpurx::detail {

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
