// SPDX-License-Identifier: Apache-2.0
#include "lease/queue_plan.hpp"

#include <catch2/catch_test_macros.hpp>
#include <map>

using namespace gpurx::detail;

TEST_CASE("a table that avoids queues keeps the entries that do already")
{
    CHECK(avoid_queues({0, 1, 2, 3, 0, 1, 2, 3}, 4, {3}) == indirection_table{0, 1, 2, 0, 0, 1, 2, 1});
    CHECK(avoid_queues({0, 1, 0, 1}, 4, {3}) == indirection_table{0, 1, 0, 1});
    CHECK(avoid_queues({0, 1, 2, 3}, 4, {2, 3}) == indirection_table{0, 1, 0, 1});
    CHECK(avoid_queues({0, 1}, 2, {}) == indirection_table{0, 1});
}

TEST_CASE("freed entries go to the queues with the least of them")
{
    // Queue 0 has five entries already, queue 1 one.
    CHECK(avoid_queues({0, 0, 0, 0, 0, 1, 2, 2, 2}, 3, {2}) == indirection_table{0, 0, 0, 0, 0, 1, 1, 1, 1});

    std::map<unsigned, int> load;
    for (unsigned const queue : avoid_queues(default_table(128, 8), 8, {5, 6, 7}))
        ++load[queue];
    CHECK(load == std::map<unsigned, int>{{0, 26}, {1, 26}, {2, 26}, {3, 25}, {4, 25}});
}

TEST_CASE("queues that the table did not use stay unused")
{
    // Somebody has kept queues 2 to 4 out of the table: they have a reason.
    CHECK(avoid_queues({0, 1, 5, 0, 1, 5}, 6, {5}) == indirection_table{0, 1, 0, 0, 1, 1});
}

TEST_CASE("a table that used only queues to avoid is spread over all others")
{
    CHECK(avoid_queues({3, 3, 3, 3}, 4, {3}) == indirection_table{0, 1, 2, 0});
    CHECK(avoid_queues({0, 0}, 3, {0}) == indirection_table{1, 2});
}

TEST_CASE("queues that no entry points at are outside")
{
    CHECK(queues_outside({0, 1, 0, 1}, 4) == std::set<unsigned>{2, 3});
    CHECK(queues_outside({0, 1, 2, 3}, 4).empty());
    CHECK(queues_outside({1, 1}, 2) == std::set<unsigned>{0});
    CHECK(queues_outside({0, 5}, 2) == std::set<unsigned>{1});
    CHECK(queues_outside({}, 4).empty());
}

TEST_CASE("no table is left when every queue is to be avoided")
{
    CHECK(avoid_queues({0, 1}, 2, {0, 1}).empty());
    CHECK(avoid_queues({}, 0, {}).empty());
}

TEST_CASE("the default table goes round all queues")
{
    CHECK(default_table(5, 2) == indirection_table{0, 1, 0, 1, 0});
    CHECK(default_table(0, 2).empty());
}

TEST_CASE("a context's table goes round its queues")
{
    std::vector<unsigned> const queues{6, 7};
    CHECK(spread_over(5, queues) == indirection_table{6, 7, 6, 7, 6});
}

TEST_CASE("a table that the kernel has made larger or smaller is the same")
{
    CHECK(same_table({0, 1, 2, 1}, {0, 1, 2, 1, 0, 1, 2, 1}));
    CHECK(same_table({0, 1, 2, 1, 0, 1, 2, 1}, {0, 1, 2, 1}));
    CHECK(same_table({}, {}));
    CHECK_FALSE(same_table({0, 1, 2, 1}, {0, 1, 2, 1, 0, 1, 2, 0}));
    CHECK_FALSE(same_table({0, 1, 0, 1}, {0, 1, 0, 1, 0, 1}));
    CHECK_FALSE(same_table({}, {0}));
    CHECK(repeats_to({3, 4}, 8));
    CHECK_FALSE(repeats_to({3, 4}, 5));
    CHECK_FALSE(repeats_to({}, 8));
    CHECK(repeated({3, 4}, 5) == indirection_table{3, 4, 3, 4, 3});
    CHECK(repeated({3, 4, 5}, 2) == indirection_table{3, 4});
}
