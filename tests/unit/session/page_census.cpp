// SPDX-License-Identifier: Apache-2.0
#include "session/page_census.hpp"

#include <catch2/catch_test_macros.hpp>

using gpurx::fragment;
using gpurx::memory_kind;
using gpurx::memory_span;
using gpurx::detail::page_census;

TEST_CASE("a page counts once, whoever has a part of it")
{
    constexpr std::uintptr_t base = 1 << 20;
    constexpr auto host = memory_kind::host;
    page_census census{memory_span{host, base, 8 * 4096}, 4096};
    CHECK(census.pages() == 8);
    CHECK(census.note({base, 1, host}) == 1);
    CHECK(census.note({base + 100, 3000, host}) == 0);
    CHECK(census.note({base + 4095, 1, host}) == 0);
    // From one page into the next but one.
    CHECK(census.note({base + 4095, 4098, host}) == 2);
    CHECK(census.note({base + 2 * 4096, 4096, host}) == 0);
    CHECK(census.note({base + 7 * 4096, 4096, host}) == 1);
    CHECK(census.note({base, 8 * 4096, host}) == 4);
    CHECK(census.note({base, 8 * 4096, host}) == 0);
}

TEST_CASE("what lies elsewhere is no page of the memory")
{
    constexpr std::uintptr_t base = 1 << 20;
    constexpr auto device = memory_kind::device;
    page_census census{memory_span{device, base, 8 * 4096}, 4096};
    CHECK(census.note({base, 4096, memory_kind::host}) == 0);
    CHECK(census.note({base - 4096, 4096, device}) == 0);
    CHECK(census.note({base + 8 * 4096, 4096, device}) == 0);
    CHECK(census.note({base, 0, device}) == 0);
    CHECK(census.note({base + 7 * 4096, 9000, device}) == 1);  // as far as the memory goes
}
