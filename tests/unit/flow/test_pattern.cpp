// SPDX-License-Identifier: Apache-2.0
#include "test_pattern.hpp"

#include <catch2/catch_test_macros.hpp>
#include <initializer_list>
#include <span>

namespace gpurx::test {

TEST_CASE("filling and comparing a run use the pattern, byte by byte")
{
    // Several times around: 251 runs have each phase.
    constexpr std::size_t end = 253 * 4099;
    auto bytes = pattern(0, end);
    for (std::size_t offset = 0; offset < end; ++offset)
        if (bytes[offset] != pattern(offset))
            FAIL("byte " << offset);
    for (std::size_t const begin : std::initializer_list<std::size_t>{0, 1, 4098, 4099, 1'000'003}) {
        CHECK(is_pattern(std::span{bytes}.subspan(begin), begin));
        CHECK_FALSE(is_pattern(std::span{bytes}.subspan(begin), begin + 1));
    }
    for (std::size_t const damaged : std::initializer_list<std::size_t>{0, 4098, 4099, end - 1}) {
        bytes[damaged] ^= std::byte{1};
        CHECK_FALSE(is_pattern(bytes, 0));
        bytes[damaged] ^= std::byte{1};
    }
    CHECK(is_pattern(bytes, 0));
}

}  // namespace gpurx::test
