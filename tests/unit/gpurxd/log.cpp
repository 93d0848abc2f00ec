// SPDX-License-Identifier: Apache-2.0
#include "log.hpp"

#include <catch2/catch_test_macros.hpp>
#include <chrono>

using namespace gpurx::gpurxd;
using namespace std::chrono_literals;

TEST_CASE("a log has ten refusals at once, then one a second, and counts the omitted ones")
{
    log_limit rate{10, 1s};
    auto const start = log_limit::clock::time_point{1h};
    for (int i = 0; i < 10; ++i)
        CHECK(rate.next(start) == 0U);
    CHECK_FALSE(rate.next(start));
    CHECK_FALSE(rate.next(start + 500ms));
    CHECK(rate.next(start + 1s) == 2U);
    CHECK_FALSE(rate.next(start + 1s));
    CHECK(rate.next(start + 1h) == 1U);
}
