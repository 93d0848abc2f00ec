// SPDX-License-Identifier: Apache-2.0
#include "ring_demand.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/byte_size.hpp"

namespace gpurx::detail {

namespace {

// What drivers add to the MTU before they round up to a power of two: link headers, headroom, skb_shared_info. mlx5
// takes about so much; its ring of 8192 frames at MTU 9000 holds 128 MiB.
constexpr std::size_t beside_the_mtu = 512;

}  // namespace

std::size_t ring_demand::bytes() const noexcept
{
    return frames * bytes_per_frame * queues;
}

bool ring_demand::is_tight(std::size_t memory) const noexcept
{
    return bytes() > memory / 4;
}

std::optional<std::uint64_t> ring_demand::frames_within(std::size_t bytes) const noexcept
{
    auto const each = bytes_per_frame * queues;
    if (each == 0 || bytes < each)
        return std::nullopt;
    return std::bit_floor(bytes / each);
}

ring_demand demand_of(nic_ring const& ring, std::size_t queues, std::size_t page_size) noexcept
{
    auto const whole_pages = round_up(std::max<std::size_t>(ring.mtu, 1), page_size);
    return {.frames = ring.frames.value_or(0),
            .bytes_per_frame = std::max(whole_pages, std::bit_ceil(ring.mtu + beside_the_mtu)),
            .queues = queues};
}

ring_demand rings_of(session_nic const& nic)
{
    return demand_of(nic.ring(), nic.queues().size(), nic.page_size());
}

std::string describe(ring_demand const& demand, std::string_view interface)
{
    if (demand.frames == 0)
        return fmt::format("what the ring of {} keeps of it is not known: the driver does not tell its size",
                           interface);
    auto const rings = demand.queues == 1 ? std::string{"ring"} : fmt::format("{} rings", demand.queues);
    return fmt::format("the {} of {} keep{} at least {} of it posted ({} frames of {}{})", rings, interface,
                       demand.queues == 1 ? "s" : "", size_text(demand.bytes()), demand.frames,
                       size_text(demand.bytes_per_frame), demand.queues == 1 ? "" : " each");
}

std::string advice_on_tight_ring(ring_demand const& demand, std::string_view interface, std::size_t memory)
{
    auto text = fmt::format("{}, of {} in all: give more memory", describe(demand, interface), size_text(memory));
    if (auto const frames = demand.frames_within(memory / 4))
        text += fmt::format(", or make the ring smaller (ethtool -G {} rx {})", interface, *frames);
    return text;
}

}  // namespace gpurx::detail
