// SPDX-License-Identifier: Apache-2.0
#include "base/counters.hpp"

#include <catch2/catch_test_macros.hpp>

namespace gpurx::detail {

TEST_CASE("a snapshot has each counter in its place")
{
    flow_counters counters;
    counters.device_bytes.add(1);
    counters.resteered_bytes.add(2);
    counters.linear_bytes.add(3);
    counters.host_bytes.add(4);
    counters.fragments.add(5);
    CHECK(counters.tokens_out.add(16) == 16);
    counters.tokens_out.subtract(10);
    counters.tokens_high_water.raise_to(17);
    counters.tokens_high_water.raise_to(7);
    counters.xarray_tokens.add(18);
    counters.receive_calls.add(8);
    counters.release_calls.add(9);
    counters.waits.add(10);
    counters.loan_waits.add(11);
    counters.release_shortfalls.add(12);
    counters.release_failures.add(13);
    counters.starved.add(14);
    counters.host_memory.add(15);
    stats const expected{.device_bytes = 1,
                         .resteered_bytes = 2,
                         .linear_bytes = 3,
                         .host_bytes = 4,
                         .fragments = 5,
                         .tokens_out = 6,
                         .tokens_high_water = 17,
                         .xarray_tokens = 18,
                         .receive_calls = 8,
                         .release_calls = 9,
                         .waits = 10,
                         .loan_waits = 11,
                         .release_shortfalls = 12,
                         .release_failures = 13,
                         .starved = 14,
                         .host_memory = 15};
    CHECK(counters.snapshot() == expected);
    CHECK(counters.snapshot().bytes() == 10);

    auto const doubled = counters.snapshot() + counters.snapshot();
    CHECK(doubled.device_bytes == 2);
    CHECK(doubled.resteered_bytes == 4);
    CHECK(doubled.linear_bytes == 6);
    CHECK(doubled.host_bytes == 8);
    CHECK(doubled.fragments == 10);
    CHECK(doubled.tokens_out == 12);
    CHECK(doubled.tokens_high_water == 17);
    CHECK(doubled.xarray_tokens == 36);
    CHECK(doubled.receive_calls == 16);
    CHECK(doubled.release_calls == 18);
    CHECK(doubled.waits == 20);
    CHECK(doubled.loan_waits == 22);
    CHECK(doubled.release_shortfalls == 24);
    CHECK(doubled.release_failures == 26);
    CHECK(doubled.starved == 28);
    CHECK(doubled.host_memory == 30);
}

}  // namespace gpurx::detail
