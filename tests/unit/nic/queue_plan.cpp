// SPDX-License-Identifier: Apache-2.0
#include "lease/queue_plan.hpp"

#include <catch2/catch_test_macros.hpp>
#include <map>

using namespace gpurx::detail;
using queues = std::vector<unsigned>;

TEST_CASE("queues are taken from the top")
{
    CHECK(plan_queues(8, 8, {}, 2) == queue_plan{{6, 7}, 8});
    CHECK(plan_queues(8, 8, {}, 1) == queue_plan{{7}, 8});
    CHECK(plan_queues(2, 8, {}, 1) == queue_plan{{1}, 2});
}

TEST_CASE("queues that are taken are passed over")
{
    CHECK(plan_queues(8, 8, {7}, 1) == queue_plan{{6}, 8});
    CHECK(plan_queues(8, 8, {6}, 2) == queue_plan{{5, 7}, 8});
    CHECK(plan_queues(4, 4, {2}, 2) == queue_plan{{1, 3}, 4});
}

TEST_CASE("queue 0 is never set aside")
{
    CHECK_FALSE(plan_queues(2, 2, {}, 2));
    CHECK_FALSE(plan_queues(1, 1, {}, 1));
    CHECK(plan_queues(3, 3, {}, 2) == queue_plan{{1, 2}, 3});
}

TEST_CASE("more queues are asked for when those that are there do not suffice")
{
    CHECK(plan_queues(1, 8, {}, 1) == queue_plan{{1}, 2});
    CHECK(plan_queues(2, 8, {1}, 1) == queue_plan{{2}, 3});
    CHECK(plan_queues(2, 8, {1}, 2) == queue_plan{{2, 3}, 4});
    CHECK(plan_queues(0, 8, {}, 1) == queue_plan{{1}, 2});
    CHECK(plan_queues(2, 8, {}, 7) == queue_plan{{1, 2, 3, 4, 5, 6, 7}, 8});
    // Somebody's lease on a queue beyond those that are there.
    CHECK(plan_queues(1, 8, {1}, 1) == queue_plan{{2}, 3});
}

TEST_CASE("a plan with more queues than the NIC has is refused")
{
    CHECK_FALSE(plan_queues(2, 8, {}, 8));
    CHECK_FALSE(plan_queues(2, 2, {1}, 1));
    CHECK_FALSE(plan_queues(2, 0, {}, 4));
}

TEST_CASE("channels are raised as combined ones where the NIC has them")
{
    ethtool::channels const combined{0, 0, 2, 0, 0, 8};
    CHECK(most_rx_queues(combined) == 8);
    CHECK(with_rx_queues(combined, 4) == ethtool::channels{0, 0, 4, 0, 0, 8});

    ethtool::channels const separate{2, 2, 0, 8, 8, 0};
    CHECK(most_rx_queues(separate) == 8);
    CHECK(with_rx_queues(separate, 4) == ethtool::channels{4, 2, 0, 8, 8, 0});

    ethtool::channels const both{1, 0, 2, 4, 4, 8};
    CHECK(most_rx_queues(both) == 9);
    CHECK(with_rx_queues(both, 4) == ethtool::channels{1, 0, 3, 4, 4, 8});
}

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
    queues const of_context{6, 7};
    CHECK(spread_over(5, of_context) == indirection_table{6, 7, 6, 7, 6});
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
