// SPDX-License-Identifier: Apache-2.0
#include "counters.hpp"

#include <algorithm>

namespace gpurx::detail {

stats flow_counters::snapshot() const noexcept
{
    return {
        .device_bytes = device_bytes.value(),
        .resteered_bytes = resteered_bytes.value(),
        .linear_bytes = linear_bytes.value(),
        .host_bytes = host_bytes.value(),
        .fragments = fragments.value(),
        .tokens_out = tokens_out.value(),
        .tokens_high_water = tokens_high_water.value(),
        .xarray_tokens = xarray_tokens.value(),
        .receive_calls = receive_calls.value(),
        .release_calls = release_calls.value(),
        .waits = waits.value(),
        .loan_waits = loan_waits.value(),
        .release_shortfalls = release_shortfalls.value(),
        .release_failures = release_failures.value(),
        .starved = starved.value(),
        .host_memory = host_memory.value(),
    };
}

stats operator+(stats const& a, stats const& b) noexcept
{
    return {
        .device_bytes = a.device_bytes + b.device_bytes,
        .resteered_bytes = a.resteered_bytes + b.resteered_bytes,
        .linear_bytes = a.linear_bytes + b.linear_bytes,
        .host_bytes = a.host_bytes + b.host_bytes,
        .fragments = a.fragments + b.fragments,
        .tokens_out = a.tokens_out + b.tokens_out,
        .tokens_high_water = std::max(a.tokens_high_water, b.tokens_high_water),
        .xarray_tokens = a.xarray_tokens + b.xarray_tokens,
        .receive_calls = a.receive_calls + b.receive_calls,
        .release_calls = a.release_calls + b.release_calls,
        .waits = a.waits + b.waits,
        .loan_waits = a.loan_waits + b.loan_waits,
        .release_shortfalls = a.release_shortfalls + b.release_shortfalls,
        .release_failures = a.release_failures + b.release_failures,
        .starved = a.starved + b.starved,
        .host_memory = a.host_memory + b.host_memory,
    };
}

}  // namespace gpurx::detail
