// SPDX-License-Identifier: Apache-2.0
#include "base/byte_size.hpp"

#include <catch2/catch_test_macros.hpp>

using gpurx::detail::round_up;
using gpurx::detail::size_text;

TEST_CASE("sizes round up to whole units")
{
    STATIC_REQUIRE(round_up(0, 4096) == 0);
    STATIC_REQUIRE(round_up(1, 4096) == 4096);
    STATIC_REQUIRE(round_up(4096, 4096) == 4096);
    STATIC_REQUIRE(round_up(4097, 4096) == 8192);
}

TEST_CASE("sizes print with the largest fitting unit and at most one decimal, rounded down")
{
    CHECK(size_text(0) == "0 bytes");
    CHECK(size_text(1023) == "1023 bytes");
    CHECK(size_text(1024) == "1 KiB");
    CHECK(size_text(1536) == "1.5 KiB");
    CHECK(size_text(2047) == "1.9 KiB");
    CHECK(size_text(64ULL << 20) == "64 MiB");
    CHECK(size_text((1ULL << 30) + (1ULL << 29)) == "1.5 GiB");
    CHECK(size_text((1ULL << 30) - 1) == "1023.9 MiB");
    CHECK(size_text(~0ULL) == "15.9 EiB");
}
