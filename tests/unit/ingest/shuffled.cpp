// SPDX-License-Identifier: Apache-2.0
#include "stream/shuffled.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>

using gpurx::ingest::detail::shuffled;
using gpurx::ingest::detail::split_mix;

TEST_CASE("SplitMix64 gives the numbers that its authors' program gives")
{
    split_mix random{1234567};
    CHECK(random() == 6457827717110365317U);
    CHECK(random() == 3203168211198807973U);
    CHECK(random() == 9817491932198370423U);
}

TEST_CASE("Shuffled rows are all there, and in an order of seed, epoch and window")
{
    auto const order = shuffled(1000, 1, 2, 3);
    auto sorted = order;
    std::ranges::sort(sorted);
    for (std::size_t i = 0; i < sorted.size(); ++i)
        REQUIRE(sorted[i] == i);
    CHECK(order == shuffled(1000, 1, 2, 3));
    CHECK(order != shuffled(1000, 2, 2, 3));
    CHECK(order != shuffled(1000, 1, 3, 3));
    CHECK(order != shuffled(1000, 1, 2, 4));
    CHECK(shuffled(1, 1, 2, 3) == std::vector<std::size_t>{0});
}

TEST_CASE("Every order is about as likely as the others")
{
    std::array<int, 27> seen{};
    constexpr int tries = 6000;
    for (std::uint64_t window = 0; window < tries; ++window) {
        auto const order = shuffled(3, 42, 0, window);
        ++seen[order[0] * 9 + order[1] * 3 + order[2]];
    }
    CHECK(std::ranges::count(seen, 0) == 27 - 6);
    for (auto const count : seen)
        CHECK((count == 0 || (count > 850 && count < 1150)));
}
