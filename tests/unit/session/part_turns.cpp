// SPDX-License-Identifier: Apache-2.0
#include "session/part_turns.hpp"

#include <catch2/catch_test_macros.hpp>
#include <optional>
#include <vector>

using gpurx::detail::part_condition;
using gpurx::detail::part_turns;

namespace {

std::vector<std::optional<std::size_t>> turns_among(std::vector<part_condition> const& parts, int count)
{
    part_turns turns;
    std::vector<std::optional<std::size_t>> taken;
    for (int i = 0; i < count; ++i)
        taken.push_back(turns.next(parts));
    return taken;
}

using numbers = std::vector<std::optional<std::size_t>>;

}  // namespace

TEST_CASE("parts of a session take turns")
{
    CHECK(turns_among({{4, false}, {4, false}, {4, false}}, 5) == numbers{0, 1, 2, 0, 1});
}

TEST_CASE("a part that is full, or whose GPU is in error, is left out")
{
    CHECK(turns_among({{4, false}, {0, false}, {4, false}}, 4) == numbers{0, 2, 0, 2});
    CHECK(turns_among({{4, true}, {4, false}, {0, true}}, 3) == numbers{1, 1, 1});
}

TEST_CASE("where no part can take a flow, none is named")
{
    CHECK(turns_among({{0, false}, {4, true}}, 2) == numbers{std::nullopt, std::nullopt});
    CHECK(turns_among({}, 1) == numbers{std::nullopt});
}

TEST_CASE("turns go on where they were when a part has places again")
{
    part_turns turns;
    std::vector<part_condition> parts{{1, false}, {0, false}, {1, false}};
    CHECK(turns.next(parts) == 0U);
    CHECK(turns.next(parts) == 2U);
    parts[1].free_places = 1;
    CHECK(turns.next(parts) == 0U);
    CHECK(turns.next(parts) == 1U);
}
