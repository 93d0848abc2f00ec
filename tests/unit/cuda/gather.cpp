// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "cuda/gather_plan.hpp"
#include "gather_on_cpu.hpp"

namespace gpurx::detail {

namespace {

std::uint32_t reference_crc(std::span<std::uint8_t const> bytes)
{
    return test::reference_crc32c(bytes);
}

std::uint32_t reference_crc(std::string_view text)
{
    return test::reference_crc32c({reinterpret_cast<std::uint8_t const*>(text.data()), text.size()});
}

// Bytes from an address that is `alignment` beyond a multiple of 16, with guards around them.
class buffer {
  public:
    buffer(std::size_t size, unsigned alignment, std::uint8_t fill) : bytes_(size + 64, fill), size_{size}
    {
        auto const start = (reinterpret_cast<std::uintptr_t>(bytes_.data()) + 31) / 16 * 16;
        first_ = start + alignment - reinterpret_cast<std::uintptr_t>(bytes_.data());
    }
    [[nodiscard]] std::span<std::uint8_t> bytes() { return std::span{bytes_}.subspan(first_, size_); }
    [[nodiscard]] std::uint64_t address() { return reinterpret_cast<std::uint64_t>(bytes().data()); }
    [[nodiscard]] bool guards_are(std::uint8_t fill) const
    {
        auto const is = [fill](std::uint8_t byte) { return byte == fill; };
        auto const first = bytes_.begin() + static_cast<std::ptrdiff_t>(first_);
        return std::all_of(bytes_.begin(), first, is) &&
               std::all_of(first + static_cast<std::ptrdiff_t>(size_), bytes_.end(), is);
    }

  private:
    std::vector<std::uint8_t> bytes_;
    std::size_t size_;
    std::size_t first_ = 0;
};

// Moves a piece; returns what it adds to the sum of the frame.
std::uint32_t run(gather_piece const& piece, std::uint64_t destination, crc_frame const& frame)
{
    return test::gather_with_crc({piece, destination}, frame, crc_tables_of_gather());
}

void fill_randomly(std::span<std::uint8_t> bytes, std::mt19937& random)
{
    std::ranges::generate(bytes, [&] { return static_cast<std::uint8_t>(random()); });
}

bool same(std::span<std::uint8_t const> a, std::span<std::uint8_t const> b)
{
    return std::ranges::equal(a, b);
}

}  // namespace

TEST_CASE("CRC32C is the one of RFC 3720")
{
    CHECK(reference_crc("123456789") == 0xe3069283);
    CHECK(reference_crc(std::string(32, '\0')) == 0x8a9136aa);
    CHECK(reference_crc(std::string(32, '\xff')) == 0x62a8ab43);
    CHECK(crc32c_of(0, crc_frame_for(0x1007, 0)) == 0);
    CHECK(crc32c_of(0, crc_frame_for(0x1007, 32)) == 0x8a9136aa);
    CHECK(crc32c_multiply(crc32c_shift(1000), crc32c_shift(-1000)) == crc32c_shift(0));
}

TEST_CASE("a piece is copied byte for byte at each pair of alignments, and nothing beside it")
{
    std::mt19937 random{1};
    for (unsigned from = 0; from < 16; ++from) {
        for (unsigned to = 0; to < 16; ++to) {
            for (auto const size :
                 {1U, 2U, 3U, 5U, 15U, 16U, 17U, 31U, 32U, 33U, 47U, 100U, 511U, 512U, 513U, 1448U, 2100U, 4096U}) {
                buffer source{size, from, 0xaa};
                buffer destination{size, to, 0x55};
                fill_randomly(source.bytes(), random);
                auto const frame = crc_frame_for(destination.address(), size);
                auto const sum =
                    run({.source = source.address(), .size = size, .offset = 0}, destination.address(), frame);
                REQUIRE(same(destination.bytes(), source.bytes()));
                REQUIRE(destination.guards_are(0x55));
                REQUIRE(crc32c_of(sum, frame) == reference_crc(source.bytes()));
            }
        }
    }
}

TEST_CASE("a piece that lies in its place already is read, and not written")
{
    constexpr std::size_t page = 4096;
    auto* const memory = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    std::mt19937 random{3};
    std::span<std::uint8_t> const bytes{static_cast<std::uint8_t*>(memory), page};
    fill_randomly(bytes, random);
    REQUIRE(::mprotect(memory, page, PROT_READ) == 0);
    for (unsigned from = 0; from < 16; ++from) {
        for (auto const size : {1U, 15U, 17U, 100U, 2100U}) {
            auto const address = reinterpret_cast<std::uint64_t>(bytes.data()) + from;
            auto const frame = crc_frame_for(address, size);
            auto const sum = run({.source = address, .size = size, .offset = 0}, address, frame);
            REQUIRE(crc32c_of(sum, frame) == reference_crc(bytes.subspan(from, size)));
        }
    }
    REQUIRE(::munmap(memory, page) == 0);
}

TEST_CASE("a batch of fragments is one range, with the CRC of all, in whatever order its pieces are done")
{
    std::mt19937 random{2};
    for (int round = 0; round < 200; ++round) {
        buffer memory{1 << 16, 0, 0};
        fill_randomly(memory.bytes(), random);
        std::vector<fragment> fragments;
        std::vector<std::uint8_t> expected;
        for (auto n = random() % 40; n > 0; --n) {
            auto const size = 1 + random() % (random() % 2 == 0 ? 40 : 5000);
            auto const at = random() % (memory.bytes().size() - size);
            fragments.push_back({memory.address() + at, size, memory_kind::host});
            auto const piece = memory.bytes().subspan(at, size);
            expected.insert(expected.end(), piece.begin(), piece.end());
        }
        buffer destination{expected.size(), static_cast<unsigned>(random() % 16), 0x55};
        std::vector<gather_piece> pieces;
        auto const piece_size = gather_piece_size(expected.size(), 1 + static_cast<std::uint32_t>(random() % 64));
        REQUIRE(plan_gather(fragments, destination.address(), 0, piece_size, pieces) == expected.size());
        std::ranges::shuffle(pieces, random);
        auto const frame = crc_frame_for(destination.address(), expected.size());
        std::uint32_t sum = 0;
        for (auto const& piece : pieces) {
            REQUIRE(piece.size <= piece_size);
            sum ^= run(piece, destination.address(), frame);
        }
        REQUIRE(same(destination.bytes(), expected));
        REQUIRE(destination.guards_are(0x55));
        REQUIRE(crc32c_of(sum, frame) == reference_crc(expected));
    }
}

TEST_CASE("the weight of bytes far from the end is right as well")
{
    auto const& powers = crc_tables_of_gather().powers;
    for (auto const vectors : {0U, 1U, 1023U, 1024U, 1025U, 1U << 20, (1U << 28) - 1})
        CHECK(weigh(0x12345678, vectors, powers, test::product_on_cpu) ==
              crc32c_multiply(0x12345678, crc32c_shift(std::int64_t{vectors} * vector_bytes)));
}

}  // namespace gpurx::detail
