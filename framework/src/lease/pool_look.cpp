// SPDX-License-Identifier: Apache-2.0
#include "pool_look.hpp"

#include <algorithm>
#include <optional>

#include "nic/nic_device.hpp"

namespace gpurx::detail {

namespace {

std::optional<std::uint64_t> since(std::optional<std::uint64_t> const& before,
                                   std::optional<std::uint64_t> const& now) noexcept
{
    return now && before && *now >= *before ? std::optional{*now - *before} : now;
}

// What no queue counts stays empty.
void add(std::optional<std::uint64_t>& sum, std::optional<std::uint64_t> const& count) noexcept
{
    if (count)
        sum = sum.value_or(0) + *count;
}

}  // namespace

pool_sample look_at_pool(nic_device& device, std::uint32_t dmabuf, std::span<unsigned const> queues)
{
    pool_sample result;
    for (auto const& pool : device.page_pools())
        result.in_flight += pool.dmabuf == dmabuf ? pool.inflight : 0;
    for (auto const& queue : device.rx_losses()) {
        if (std::ranges::find(queues, queue.queue) == queues.end())
            continue;
        add(result.allocation_failures, queue.allocation_failures);
        add(result.overruns, queue.overruns);
        add(result.drops, queue.drops);
    }
    return result;
}

pool_sample losses_since(pool_sample const& before, pool_sample now) noexcept
{
    now.allocation_failures = since(before.allocation_failures, now.allocation_failures);
    now.overruns = since(before.overruns, now.overruns);
    now.drops = since(before.drops, now.drops);
    return now;
}

}  // namespace gpurx::detail
