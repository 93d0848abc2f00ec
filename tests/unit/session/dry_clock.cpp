// SPDX-License-Identifier: Apache-2.0
#include "session/dry_clock.hpp"

#include <catch2/catch_test_macros.hpp>

using gpurx::detail::dry_clock;
using namespace std::chrono_literals;

namespace {

dry_clock::time_point at(int milliseconds)
{
    return dry_clock::time_point{std::chrono::milliseconds{milliseconds}};
}

}  // namespace

TEST_CASE("a pool was dry between two looks that found it so, and packets without a page in between")
{
    dry_clock clock;
    clock.look(at(0), true, 3);
    CHECK(clock.total() == 0ms);
    clock.look(at(100), true, 4);
    CHECK(clock.total() == 100ms);
    clock.look(at(150), true, 9);
    CHECK(clock.total() == 150ms);
    SECTION("full, but nobody lacks a page")
    {
        clock.look(at(1000), true, 9);
        CHECK(clock.total() == 150ms);
        clock.look(at(1100), true, 10);
        CHECK(clock.total() == 250ms);
    }
    SECTION("a free page in between")
    {
        clock.look(at(200), false, 20);
        clock.look(at(300), true, 30);
        CHECK(clock.total() == 150ms);
        clock.look(at(301), true, 31);
        CHECK(clock.total() == 151ms);
    }
    SECTION("nobody looked in between")
    {
        clock.pause();
        clock.look(at(10000), true, 100);
        CHECK(clock.total() == 150ms);
    }
    SECTION("a driver whose counts begin anew")
    {
        clock.look(at(200), true, 0);
        CHECK(clock.total() == 150ms);
        clock.look(at(250), true, 1);
        CHECK(clock.total() == 200ms);
    }
}
