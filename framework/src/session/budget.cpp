// SPDX-License-Identifier: Apache-2.0
#include "budget.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "base/byte_size.hpp"

namespace gpurx::detail {

namespace {

// Drivers add this to the MTU before they round up to a power of two: link headers, headroom, skb_shared_info. mlx5
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
        return fmt::format("the share that the ring of {} keeps is not known: the driver does not report its size",
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

namespace {

// Two segments of the largest size that TCP offload makes, or a few that occupy a page each.
constexpr std::size_t largest_segment = 64 * kibibyte;
constexpr std::size_t fewest_pages = 8;

// The kernel doubles it, and the result must stay an int.
constexpr auto largest_buffer = std::size_t{std::numeric_limits<int>::max()} / 2;

bool has_flows(budget_request const& request, error_code& code, diagnostics& why)
{
    code.clear();
    if (request.max_flows > 0)
        return true;
    code = make_error_code(boost::system::errc::invalid_argument);
    why = {.operation = "share out", .object = "memory", .kernel_message = {}, .advice = "set max_flows above 0"};
    return false;
}

diagnostics too_small(std::size_t available, std::size_t least, budget_request const& request,
                      std::string const& remedy)
{
    auto const places = request.parts == 1 ? std::string{} : fmt::format(" on any of {} queues", request.parts);
    return {.operation = "share out",
            .object = fmt::format("{} among {} flows{}", size_text(available), request.max_flows, places),
            .kernel_message = {},
            .advice = fmt::format("each needs {}: {}", size_text(least), remedy)};
}

void offer_fewer_flows(diagnostics& why, std::size_t fitting)
{
    if (fitting > 0)
        why.advice += fmt::format(", or lower max_flows to {}", fitting);
}

std::size_t left_by_rings(budget_request const& request) noexcept
{
    return request.memory - std::min(request.memory, request.rings.bytes());
}

// Bytes that size_text() does not round down.
std::size_t sayable(std::size_t bytes) noexcept
{
    constexpr auto gibibyte = 1024 * mebibyte;
    return round_up(bytes, bytes < mebibyte ? kibibyte : bytes < gibibyte ? mebibyte : gibibyte / 2);
}

// Shares of the memory: one for each flow on each queue that it may be on.
std::size_t shares_of(budget_request const& request) noexcept
{
    return request.max_flows * request.parts;
}

std::size_t receive_memory_of(budget_request const& request) noexcept
{
    return request.receive_memory != 0 ? request.receive_memory : left_by_rings(request) / 2;
}

// Loans and reads may always have a segment, however little receive_memory leaves.
std::size_t smallest_part(std::size_t page_size) noexcept
{
    return smallest_share(page_size) / 2;
}

// Of what receive buffers leave of a flow's share, loans have one half and reads the other.
std::size_t part_of_rest(budget_request const& request, std::size_t receive_memory) noexcept
{
    auto const all = left_by_rings(request);
    auto const rest = all - std::min(all, receive_memory);
    return std::max(rest / shares_of(request) / 2, smallest_part(request.page_size));
}

// A flow needs at least this of what the rings leave: half of it is for receiving, unless the caller says how much.
std::size_t least_per_flow(budget_request const& request) noexcept
{
    return (request.receive_memory != 0 ? 1 : 2) * smallest_share(request.page_size);
}

diagnostics too_little_receive_memory(budget_request const& request)
{
    auto const least = smallest_share(request.page_size);
    auto why = too_small(request.receive_memory, least, request,
                         fmt::format("raise receive_memory to {}", size_text(least * shares_of(request))));
    offer_fewer_flows(why, request.receive_memory / least / request.parts);
    return why;
}

diagnostics too_little_memory(budget_request const& request)
{
    auto const left = left_by_rings(request);
    auto const each = least_per_flow(request);
    auto const ring = request.rings.bytes();
    auto const half = request.receive_memory == 0;
    auto why = too_small(half ? left / 2 : left, smallest_share(request.page_size), request,
                         fmt::format("give a memory of {}{}", size_text(sayable(ring + each * shares_of(request))),
                                     half ? ", of which half is for receiving" : ""));
    if (ring > 0) {
        why.object += fmt::format(", as {}", describe(request.rings, request.interface));
        auto const spare = request.memory - std::min(request.memory, each * shares_of(request));
        if (auto const frames = request.rings.frames_within(spare))
            why.advice += fmt::format(", or a smaller ring (ethtool -G {} rx {})", request.interface, *frames);
    }
    offer_fewer_flows(why, left / each / request.parts);
    return why;
}

int buffer_for(std::size_t share) noexcept
{
    return static_cast<int>(std::clamp<std::size_t>(share / 2, 1, largest_buffer));
}

}  // namespace

std::size_t smallest_share(std::size_t page_size) noexcept
{
    return std::max(2 * round_up(largest_segment, page_size), fewest_pages * page_size);
}

budget plan_budget(budget_request const& request, error_code& code, diagnostics& why)
{
    if (!has_flows(request, code, why))
        return {};
    auto const total = receive_memory_of(request);
    auto const share = total / shares_of(request);
    bool const memory_suffices = left_by_rings(request) / shares_of(request) >= least_per_flow(request);
    if (!memory_suffices || share < smallest_share(request.page_size)) {
        code = errc::memory_too_small;
        why = memory_suffices ? too_little_receive_memory(request) : too_little_memory(request);
        return {};
    }
    return {.receive_memory = total,
            .share = share,
            .receive_buffer_size = buffer_for(share),
            .loan_limit = request.loan_limit != 0 ? request.loan_limit : part_of_rest(request, total),
            .read_share = part_of_rest(request, total)};
}

budget plan_copy_budget(budget_request const& request, std::size_t smallest, error_code& code, diagnostics& why)
{
    if (!has_flows(request, code, why))
        return {};
    if (request.memory < smallest) {
        code = errc::memory_too_small;
        why = too_small(request.memory, smallest / request.max_flows, request,
                        fmt::format("give a memory of {}", size_text(smallest)));
        offer_fewer_flows(why, request.memory / (smallest / request.max_flows));
        return {};
    }
    auto const total = receive_memory_of(request);
    auto const share = total / request.max_flows;
    return {.receive_memory = total,
            .share = share,
            .receive_buffer_size = request.receive_memory != 0 ? buffer_for(share) : 0,
            .loan_limit = request.loan_limit != 0 ? request.loan_limit : std::max(share, std::size_t{1}),
            .read_share = std::max(share, std::size_t{1})};
}

std::vector<std::size_t> offsets_of_parts(std::size_t memory, std::size_t page_size, std::size_t count)
{
    auto const size = memory / page_size / count * page_size;
    std::vector<std::size_t> offsets(size > 0 ? count : 0);
    for (std::size_t i = 0; i < offsets.size(); ++i)
        offsets[i] = i * size;
    return offsets;
}

std::optional<std::size_t> part_turns::next(std::span<part_condition const> parts) noexcept
{
    for (std::size_t tried = 0; tried < parts.size(); ++tried) {
        auto const part = turn_++ % parts.size();
        if (parts[part].free_places > 0 && !parts[part].failed)
            return part;
    }
    return std::nullopt;
}

}  // namespace gpurx::detail
