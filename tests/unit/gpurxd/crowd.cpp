// SPDX-License-Identifier: Apache-2.0
#include "crowd.hpp"

#include <catch2/catch_test_macros.hpp>
#include <chrono>

#include "line_rate.hpp"

using namespace gpurx::gpurxd;
using namespace std::chrono_literals;

namespace {

// So many processes of users that differ, from `first` on, come as far as there is room.
unsigned come_in(crowd& to, standing how, unsigned count, uid_t first)
{
    unsigned taken = 0;
    for (unsigned i = 0; i < count; ++i) {
        if (!to.has_room(how, first + i))
            continue;
        to.add(static_cast<pid_t>(first + i), how, first + i);
        ++taken;
    }
    return taken;
}

}  // namespace

TEST_CASE("the policy knows a user by its line, one of its groups', or everybody's")
{
    known_ids const known{.users = {1000}, .groups = {44}};
    CHECK(standing_of(known, {.uid = 1000, .user = {}, .gids = {7}, .groups = {}}) == standing::named);
    CHECK(standing_of(known, {.uid = 1001, .user = {}, .gids = {7, 44}, .groups = {}}) == standing::named);
    CHECK(standing_of(known, {.uid = 44, .user = {}, .gids = {1000}, .groups = {}}) == standing::stranger);
    CHECK(standing_of({.anyone = true}, {.uid = 44, .user = {}, .gids = {}, .groups = {}}) == standing::anyone);
}

TEST_CASE("strangers with many user numbers leave room for those whom the policy lets in")
{
    crowd all;
    CHECK(come_in(all, standing::stranger, 1000, 100'000) == 32);
    CHECK(all.has_room(standing::anyone, 7));
    CHECK(come_in(all, standing::anyone, 1000, 200'000) == 352);
    CHECK_FALSE(all.has_room(standing::stranger, 7));
    CHECK_FALSE(all.has_room(standing::anyone, 7));
    CHECK(come_in(all, standing::named, 1000, 300'000) == 128);
    CHECK_FALSE(all.has_room(standing::named, 7));
    all.remove(100'000);
    CHECK(all.has_room(standing::named, 7));
    CHECK(all.has_room(standing::stranger, 7));
}

TEST_CASE("those who are named leave room for each other, and one user has a share")
{
    crowd all;
    for (pid_t i = 0; all.has_room(standing::named, 1000); ++i)
        all.add(i, standing::named, 1000);
    CHECK(all.has_room(standing::named, 1001));
    CHECK(come_in(all, standing::named, 1000, 2000) == 512 - 64);
    crowd few;
    for (pid_t i = 0; few.has_room(standing::stranger, 1000); ++i)
        few.add(i, standing::stranger, 1000);
    CHECK(come_in(few, standing::stranger, 1000, 2000) == 32 - 4);
}

TEST_CASE("a log says ten refusals at once, then one a second, and how many it left out")
{
    line_rate rate{10, 1s};
    auto const start = line_rate::clock::time_point{1h};
    for (int i = 0; i < 10; ++i)
        CHECK(rate.next(start) == 0U);
    CHECK_FALSE(rate.next(start));
    CHECK_FALSE(rate.next(start + 500ms));
    CHECK(rate.next(start + 1s) == 2U);
    CHECK_FALSE(rate.next(start + 1s));
    CHECK(rate.next(start + 1h) == 1U);
}
