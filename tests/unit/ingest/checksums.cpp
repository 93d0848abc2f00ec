// SPDX-License-Identifier: Apache-2.0
#include "source/checksums.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "source/crc64nvme.hpp"

namespace gpurx::ingest::detail {

namespace {

constexpr std::string_view text = "The quick brown fox jumps over the lazy dog, and the dog minds";

std::uint64_t crc_of(byte_range range)
{
    return crc64nvme(std::as_bytes(std::span{text.data() + range.begin, range.size()}));
}

}  // namespace

TEST_CASE("checksums of parts are joined as they come, in any order")
{
    crc64_parts parts;
    for (byte_range const each : {byte_range{40, 50}, {0, 10}, {20, 40}, {50, text.size()}}) {
        parts.add(each, crc_of(each));
        CHECK_FALSE(parts.whole(text.size()));
    }
    CHECK(parts.count() == 2);
    parts.add({10, 20}, crc_of({10, 20}));
    CHECK(parts.count() == 1);
    CHECK(parts.whole(text.size()) == crc_of({0, text.size()}));
    CHECK_FALSE(parts.whole(text.size() + 1));
}

TEST_CASE("of ranges that come again the last time counts")
{
    latest_ranges<std::uint64_t> ranges;
    for (byte_range const each : {byte_range{40, text.size()}, {3, 7}, {0, 10}}) {
        ranges.put(each, crc_of(each));
        CHECK_FALSE(ranges.whole(text.size()));
    }
    ranges.put({10, 40}, crc_of({10, 40}));
    CHECK(ranges.whole(text.size()) == crc_of({0, text.size()}));
    CHECK_FALSE(ranges.whole(text.size() + 1));
    // As they were, in one piece with others, and with other bytes.
    ranges.put({10, 40}, crc_of({10, 40}));
    ranges.put({0, 40}, crc_of({0, 40}));
    CHECK(ranges.whole(text.size()) == crc_of({0, text.size()}));
    ranges.put({0, 40}, crc_of({0, 40}) ^ 1);
    auto const other = ranges.whole(text.size());
    CHECK(other != crc_of({0, text.size()}));
    // Less than was there, or across an end: what was there stays.
    for (byte_range const each : {byte_range{0, 5}, {30, 40}, {10, 20}, {30, 50}, {40, 41}})
        ranges.put(each, crc_of(each));
    CHECK(ranges.whole(text.size()) == other);
    ranges.put({0, text.size()}, crc_of({0, text.size()}));
    CHECK(ranges.whole(text.size()) == crc_of({0, text.size()}));
}

TEST_CASE("the checksum of no bytes is zero")
{
    crc64_parts parts;
    CHECK(parts.whole(0) == 0);
    CHECK_FALSE(parts.whole(1));
    parts.add({0, 0}, 0);
    CHECK(parts.count() == 0);
    latest_ranges<std::uint64_t> ranges;
    ranges.put({0, 0}, 0);
    CHECK(ranges.whole(0) == 0);
    CHECK_FALSE(ranges.whole(1));
}

TEST_CASE("however many parts come in order, they take the room of one")
{
    crc64_parts parts;
    for (std::uint64_t i = 0; i < text.size(); ++i) {
        parts.add({i, i + 1}, crc_of({i, i + 1}));
        CHECK(parts.count() == 1);
    }
    CHECK(parts.whole(text.size()) == crc_of({0, text.size()}));
}

}  // namespace gpurx::ingest::detail
