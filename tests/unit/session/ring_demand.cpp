// SPDX-License-Identifier: Apache-2.0
#include "session/ring_demand.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "base/byte_size.hpp"

using Catch::Matchers::ContainsSubstring;
using gpurx::detail::demand_of;
using gpurx::detail::kibibyte;
using gpurx::detail::mebibyte;
using gpurx::detail::ring_demand;

TEST_CASE("a frame of the ring takes whole pages, or the power of two above MTU and 512 bytes")
{
    struct row {
        std::uint32_t mtu;
        std::size_t page;
        std::size_t per_frame;
    };
    for (auto const& [mtu, page, per_frame] : {
             row{1500, 4 * kibibyte, 4 * kibibyte},
             row{1500, 1 * kibibyte, 2 * kibibyte},
             row{3584, 4 * kibibyte, 4 * kibibyte},  // with 512 exactly a power of two
             row{3585, 4 * kibibyte, 8 * kibibyte},
             row{4096, 4 * kibibyte, 8 * kibibyte},
             row{9000, 4 * kibibyte, 16 * kibibyte},
             row{9000, 16 * kibibyte, 16 * kibibyte},
             row{1500, 64 * kibibyte, 64 * kibibyte},
             row{9000, 64 * kibibyte, 64 * kibibyte},
         }) {
        CAPTURE(mtu, page);
        CHECK(demand_of({1, mtu}, 1, page).bytes() == per_frame);
    }
    // What users of mlx5 report.
    CHECK(demand_of({8192, 9000}, 1, 4 * kibibyte).bytes() == 128 * mebibyte);
    CHECK(demand_of({1024, 1500}, 3, 4 * kibibyte).bytes() == 12 * mebibyte);
}

TEST_CASE("a ring of unknown size demands nothing, and that is said")
{
    auto const unknown = demand_of({std::nullopt, 1500}, 2, 4 * kibibyte);
    CHECK(unknown.bytes() == 0);
    CHECK_FALSE(unknown.is_tight(4 * kibibyte));
    CHECK_THAT(describe(unknown, "eth0"), ContainsSubstring("eth0 keeps of it is not known"));
}

TEST_CASE("a ring that takes more than a quarter of the memory is tight")
{
    auto const one = demand_of({128, 1500}, 1, 4 * kibibyte);
    CHECK_FALSE(one.is_tight(2 * mebibyte));
    CHECK(one.is_tight(2 * mebibyte - 4 * kibibyte));
    CHECK_THAT(advice_on_tight_ring(one, "eth0", mebibyte),
               ContainsSubstring("the ring of eth0 keeps at least 512 KiB of it posted (128 frames of 4 KiB), of 1 MiB "
                                 "in all: give more memory, or make the ring smaller (ethtool -G eth0 rx 64)"));
    auto const two = demand_of({1024, 9000}, 2, 4 * kibibyte);
    CHECK_THAT(
        advice_on_tight_ring(two, "eth0", 64 * mebibyte),
        ContainsSubstring("the 2 rings of eth0 keep at least 32 MiB of it posted (1024 frames of 16 KiB each)") &&
            ContainsSubstring("rx 512)"));
    // No ring is small enough.
    CHECK_THAT(advice_on_tight_ring(two, "eth0", 64 * kibibyte), !ContainsSubstring("ethtool"));
}

TEST_CASE("the largest ring that fits is a power of two of frames")
{
    auto const ring = demand_of({1024, 1500}, 2, 4 * kibibyte);
    CHECK(ring.frames_within(mebibyte) == 128U);
    CHECK(ring.frames_within(mebibyte - 1) == 64U);
    CHECK(ring.frames_within(8 * kibibyte) == 1U);
    CHECK_FALSE(ring.frames_within(8 * kibibyte - 1));
    CHECK_FALSE(ring_demand{}.frames_within(mebibyte));
}
