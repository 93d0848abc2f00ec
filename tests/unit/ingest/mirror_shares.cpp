// SPDX-License-Identifier: Apache-2.0
#include "http/mirror_shares.hpp"

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>

namespace gpurx::ingest::detail {

namespace {

// So many connections, one after the other, and how many each mirror gets.
template <std::size_t Size>
std::array<std::size_t, Size> spread(mirror_shares& shares, std::size_t connections)
{
    std::array<std::size_t, Size> counts{};
    for (std::size_t i = 0; i < connections; ++i) {
        auto const chosen = shares.choose().value();
        shares.began(chosen);
        ++counts.at(chosen);
    }
    return counts;
}

using counts = std::array<std::size_t, 3>;

}  // namespace

TEST_CASE("mirrors that are not known share connections")
{
    mirror_shares shares{3};
    CHECK(spread<3>(shares, 6) == counts{2, 2, 2});
}

TEST_CASE("connections go where they are fast")
{
    mirror_shares shares{3};
    shares.measured(0, 1000);
    shares.measured(1, 3000);
    shares.measured(2, 10);
    CHECK(spread<3>(shares, 8) == counts{2, 6, 0});
}

TEST_CASE("a mirror that has failed is chosen when all have")
{
    mirror_shares shares{3};
    shares.failed(0);
    CHECK(spread<3>(shares, 4) == counts{0, 2, 2});
    CHECK(shares.has_sound());
    shares.failed(1);
    shares.failed(2);
    CHECK_FALSE(shares.has_sound());
    CHECK(shares.choose() == 0U);
    shares.failed(0);
    CHECK(shares.choose() != 0U);
    shares.progressed(0);
    CHECK(shares.choose() == 0U);
    CHECK(shares.has_sound());
}

TEST_CASE("a mirror that is held or excluded is not chosen")
{
    mirror_shares shares{2};
    shares.hold(0, true);
    CHECK(shares.choose() == 1U);
    CHECK(shares.left() == 2);
    shares.exclude(1);
    CHECK_FALSE(shares.choose());
    CHECK(shares.left() == 1);
    shares.hold(0, false);
    CHECK(shares.choose() == 0U);
}

TEST_CASE("a connection is outrun by a mirror that is far faster, and sound")
{
    mirror_shares shares{2};
    CHECK_FALSE(shares.is_outrun(1, 10));
    shares.measured(0, 1000);
    CHECK(shares.is_outrun(1, 10));
    CHECK_FALSE(shares.is_outrun(1, 500));
    CHECK_FALSE(shares.is_outrun(0, 10));
    shares.failed(0);
    CHECK_FALSE(shares.is_outrun(1, 10));
    shares.progressed(0);
    shares.exclude(0);
    CHECK_FALSE(shares.is_outrun(1, 10));
}

}  // namespace gpurx::ingest::detail
