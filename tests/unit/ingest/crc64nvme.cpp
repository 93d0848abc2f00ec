// SPDX-License-Identifier: Apache-2.0
#include "source/crc64nvme.hpp"

#include <catch2/catch_test_macros.hpp>
#include <random>
#include <string_view>
#include <vector>

namespace gpurx::ingest::detail {

namespace {

// As the definition has it, bit by bit.
std::uint64_t slowly(std::span<std::byte const> bytes)
{
    auto state = ~std::uint64_t{0};
    for (auto const each : bytes) {
        state ^= std::to_integer<std::uint64_t>(each);
        for (int bit = 0; bit < 8; ++bit)
            state = (state >> 1) ^ ((state & 1) != 0 ? 0x9a6c9329ac4bc9b5 : 0);
    }
    return ~state;
}

std::vector<std::byte> noise(std::size_t size)
{
    std::mt19937_64 generator{size};
    std::vector<std::byte> bytes(size);
    for (auto& each : bytes)
        each = static_cast<std::byte>(generator());
    return bytes;
}

}  // namespace

TEST_CASE("CRC-64/NVME: the check value of its catalogue entry, and nothing of nothing")
{
    constexpr std::string_view digits = "123456789";
    CHECK(crc64nvme(std::as_bytes(std::span{digits})) == 0xae8b14860a799888);
    CHECK(crc64nvme({}) == 0);
}

TEST_CASE("CRC-64/NVME: every size, wherever it begins, and in pieces")
{
    auto const bytes = noise(700);
    std::span<std::byte const> const all{bytes};
    for (std::size_t begin = 0; begin < 9; ++begin) {
        for (std::size_t size = 0; size + begin <= bytes.size(); size += begin == 0 ? 1 : 13) {
            auto const part = all.subspan(begin, size);
            auto const expected = slowly(part);
            REQUIRE(crc64nvme(part) == expected);
            auto const middle = size / 3;
            auto const first = crc64nvme(part.first(middle));
            REQUIRE(crc64nvme(part.subspan(middle), first) == expected);
            REQUIRE(crc64nvme_combine(first, crc64nvme(part.subspan(middle)), size - middle) == expected);
        }
    }
}

TEST_CASE("CRC-64/NVME: pieces are put together over any distance")
{
    // Zero bytes can be counted without being there: twice as many is the same step twice.
    auto const some = crc64nvme(noise(10));
    auto const zeros = [](std::size_t count) { return crc64nvme(std::vector<std::byte>(count)); };
    CHECK(crc64nvme_combine(some, zeros(1 << 20), 1 << 20) == crc64nvme(std::vector<std::byte>(1 << 20), some));
    CHECK(crc64nvme_combine(some, 0, 0) == some);
}

}  // namespace gpurx::ingest::detail
