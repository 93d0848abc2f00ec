// SPDX-License-Identifier: Apache-2.0
#include "lease/queue_plan.hpp"

#include <catch2/catch_test_macros.hpp>

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

TEST_CASE("what the NIC cannot have is refused")
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
