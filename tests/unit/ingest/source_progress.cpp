// SPDX-License-Identifier: Apache-2.0
#include "stream/source_progress.hpp"

#include <catch2/catch_test_macros.hpp>

using gpurx::ingest::detail::source_progress;
using verdict = source_progress::verdict;

TEST_CASE("A source's frames are taken once each, in order")
{
    source_progress progress;
    CHECK(progress.judge(0) == verdict::next);
    CHECK(progress.judge(1) == verdict::gap);
    progress.take(false);
    progress.take(false);
    CHECK(progress.expected() == 2);
    CHECK(progress.judge(0) == verdict::duplicate);
    CHECK(progress.judge(1) == verdict::duplicate);
    CHECK(progress.judge(2) == verdict::next);
    CHECK(progress.judge(3) == verdict::gap);
    CHECK(progress.judge(~std::uint64_t{0}) == verdict::gap);
}

TEST_CASE("After the last frame there are only duplicates")
{
    source_progress progress;
    progress.take(false);
    progress.take(true);
    CHECK(progress.last_taken());
    CHECK(progress.judge(1) == verdict::duplicate);
    CHECK(progress.judge(2) == verdict::after_end);
    CHECK(progress.judge(3) == verdict::after_end);
}
