// SPDX-License-Identifier: Apache-2.0
#include "gather_plan.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>

namespace gpurx::detail {

namespace {

// A descriptor costs the CPU some 11 ns (with an H200), and the GPU a read across PCIe; a small batch in smaller pieces
// would be done a microsecond earlier.
constexpr std::uint32_t smallest_piece = 8 * round_bytes;

// What each bit of a sum counts for, times a power of x.
std::array<std::uint32_t, 32> bits_times(std::uint32_t power) noexcept
{
    std::array<std::uint32_t, 32> products{};
    for (auto bit = products.size(); bit-- > 0; power = crc32c_times_x(power))
        products[bit] = power;
    return products;
}

// Bit `bit` of each of them.
std::uint32_t column(std::array<std::uint32_t, 32> const& products, unsigned bit) noexcept
{
    std::uint32_t bits = 0;
    for (unsigned i = 0; i < products.size(); ++i)
        bits |= (products[i] >> bit & 1) << i;
    return bits;
}

void fill(crc_matrices& matrices) noexcept
{
    constexpr auto bytes_of_row = std::int64_t{4} * vector_bytes;
    for (unsigned round = 0; round < most_rounds; ++round) {
        for (unsigned lane = 0; lane < warp_lanes; ++lane) {
            // Words 0 and 1 of the vector, and words 2 and 3, with what follows in their row.
            auto const follows = std::int64_t{round_bytes} * round + vector_bytes * (std::int64_t{3} - lane % 4);
            auto const first = bits_times(crc32c_shift(follows + 8));
            auto const second = bits_times(crc32c_shift(follows));
            for (unsigned i = 0; i < 4; ++i) {
                auto& vector = matrices.of_round[round][i / 2][lane];
                auto const half = i % 2 == 0 ? 0U : 2U;
                vector.word[half] = column(first, 8 * i + lane / 4);
                vector.word[half + 1] = column(second, 8 * i + lane / 4);
            }
        }
    }
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        auto const follows = bytes_of_row * (std::int64_t{7} - lane / 4);
        auto const upper = bits_times(crc32c_shift(follows + 4));
        auto const lower = bits_times(crc32c_shift(follows));
        for (unsigned i = 0; i < 4; ++i) {
            auto const bit = 8 * i + lane % 4 * 2;
            matrices.of_row[i][lane] = {{upper[bit], upper[bit + 1], lower[bit], lower[bit + 1]}};
        }
    }
}

void fill(crc_powers& powers) noexcept
{
    std::int64_t bytes = vector_bytes;
    for (auto& table : powers.of_vectors) {
        auto const one = crc32c_shift(bytes);
        auto power = crc32c_shift(0);
        for (auto& entry : table) {
            std::ranges::copy(bits_times(power), entry);
            power = crc32c_multiply(power, one);
        }
        bytes *= std::ssize(table);
    }
    for (unsigned lane = 0; lane < warp_lanes; ++lane)
        powers.of_lane[lane] = crc32c_shift(std::int64_t{vector_bytes} * (warp_lanes - 1 - lane));
}

std::unique_ptr<crc_tables const> make_tables()
{
    auto tables = std::make_unique<crc_tables>();
    tables->products.round_later = crc32c_tables_for(crc32c_shift(round_bytes));
    tables->products.word_later = crc32c_tables_for(crc32c_shift(4));
    fill(tables->matrices);
    fill(tables->powers);
    return tables;
}

}  // namespace

crc_frame crc_frame_for(std::uint64_t destination, std::uint64_t size) noexcept
{
    auto const end = destination + size;
    auto const frame_end = (end + vector_bytes - 1) / vector_bytes * vector_bytes + round_bytes;
    auto const beyond = static_cast<std::int64_t>(frame_end - end);
    return {.end = frame_end,
            .factor = crc32c_multiply(crc32c_shift(4), crc32c_shift(-beyond)),
            .addend = crc32c_multiply(0xffffffff, crc32c_shift(static_cast<std::int64_t>(size)))};
}

crc_tables const& crc_tables_of_gather()
{
    static auto const tables = make_tables();
    return *tables;
}

std::uint32_t gather_piece_size(std::uint64_t batch, std::uint32_t warps) noexcept
{
    auto const share = batch / std::max(warps, 1U) / round_bytes * round_bytes;
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(share, smallest_piece, largest_piece));
}

std::uint32_t plan_gather(std::span<fragment const> fragments, std::uint64_t destination, std::uint32_t offset,
                          std::uint32_t piece_size, std::vector<gather_piece>& pieces)
{
    for (auto const& from : fragments) {
        for (std::size_t done = 0; done < from.size;) {
            // What is longer is cut at multiples of the size, so that only a fragment's own ends are partial vectors.
            auto const rest = from.size - done;
            auto const size = static_cast<std::uint32_t>(
                rest <= piece_size ? rest : piece_size - (destination + offset) % piece_size);
            pieces.push_back({.source = from.address + done, .size = size, .offset = offset});
            done += size;
            offset += size;
        }
    }
    return offset;
}

}  // namespace gpurx::detail
