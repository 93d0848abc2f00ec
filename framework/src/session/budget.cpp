// SPDX-License-Identifier: Apache-2.0
#include "budget.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "memory/byte_size.hpp"

namespace gpurx::detail {

namespace {

// Two segments of the largest size that TCP offload makes, or a few that occupy a page each.
constexpr std::size_t largest_segment = 64 * kibibyte;
constexpr std::size_t fewest_pages = 8;

// What the kernel doubles must stay an int.
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

diagnostics too_small(std::size_t available, std::size_t least, unsigned flows, std::string const& remedy)
{
    diagnostics why{.operation = "share out",
                    .object = fmt::format("{} among {} flows", size_text(available), flows),
                    .kernel_message = {},
                    .advice = fmt::format("each needs {}: {}", size_text(least), remedy)};
    if (auto const fitting = available / least; fitting > 0)
        why.advice += fmt::format(", or lower max_flows to {}", fitting);
    return why;
}

std::size_t receive_memory_of(budget_request const& request) noexcept
{
    return request.receive_memory != 0 ? request.receive_memory : request.memory / 2;
}

// What loans and reads may have is never less than a segment, however little receive_memory leaves.
std::size_t smallest_part(std::size_t page_size) noexcept
{
    return smallest_share(page_size) / 2;
}

// Of what receive buffers leave of a flow's share, loans have one half and reads the other.
std::size_t part_of_rest(budget_request const& request, std::size_t receive_memory) noexcept
{
    auto const rest = request.memory - std::min(request.memory, receive_memory);
    return std::max(rest / request.max_flows / 2, smallest_part(request.page_size));
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
    auto const share = total / request.max_flows;
    if (auto const least = smallest_share(request.page_size); share < least) {
        code = errc::memory_too_small;
        auto const for_all = least * request.max_flows;
        why = too_small(total, least, request.max_flows,
                        request.receive_memory != 0 ? fmt::format("raise receive_memory to {}", size_text(for_all))
                                                    : fmt::format("give a memory of {}, of which half is for receiving",
                                                                  size_text(2 * for_all)));
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
        why = too_small(request.memory, smallest / request.max_flows, request.max_flows,
                        fmt::format("give a memory of {}", size_text(smallest)));
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

}  // namespace gpurx::detail
