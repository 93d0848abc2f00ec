// SPDX-License-Identifier: Apache-2.0
#include "pool_account.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/byte_size.hpp"

namespace gpurx::detail {

namespace {

std::string told(char const* what, std::optional<std::uint64_t> const& count)
{
    return count ? fmt::format("{} {}", *count, what) : fmt::format("{} are not counted by the driver", what);
}

// The pages that the kernel has. It does not tell which of them are in the ring.
std::string in_ring_and_queues(pool_stats const& account)
{
    auto const queues = fmt::format("socket queues or kept for the next packet (those of this session's flows hold {})",
                                    size_text(account.in_sockets));
    if (!account.ring_demand)
        return fmt::format("{} in the NIC's ring (whose size is not known), in {}", account.in_queues, queues);
    return fmt::format("{} in the NIC's ring by its size, which wants at least {}, {} in {}", account.in_ring,
                       *account.ring_demand, account.in_queues, queues);
}

std::string dry(pool_stats const& account)
{
    if (!account.dry_time)
        return "how long it was dry is not known";
    return fmt::format("dry for {:.1f} s", std::chrono::duration<double>{*account.dry_time}.count());
}

}  // namespace

void divide(pool_stats& account, std::uint64_t in_flight) noexcept
{
    auto const held = account.on_loan + account.parked + account.in_reads;
    auto const out = std::clamp(in_flight, std::min(held, account.pages), account.pages);
    account.free = account.pages - out;
    auto const in_kernel = out - std::min(held, out);
    account.in_ring = std::min(in_kernel, account.ring_demand.value_or(0));
    account.in_queues = in_kernel - account.in_ring;
}

std::string describe(pool_stats const& account)
{
    auto text = fmt::format(
        "pages: {} of {}: {} free, {}, {} on loan, {} parked behind GPU streams, {} in reads; at most {} were not "
        "free; {}; "
        "{}, {}",
        account.pages, size_text(account.page_size), account.free, in_ring_and_queues(account), account.on_loan,
        account.parked, account.in_reads, account.high_water, dry(account),
        told("allocation failures", account.allocation_failures), told("drops for want of a buffer", account.overruns));
    for (auto const& flow : account.flows)
        if (flow.on_loan + flow.parked + flow.in_reads > 0)
            text += fmt::format("\npages of {}: {} on loan, {} parked behind GPU streams, {} in reads", flow.connection,
                                flow.on_loan, flow.parked, flow.in_reads);
    return text;
}

}  // namespace gpurx::detail
