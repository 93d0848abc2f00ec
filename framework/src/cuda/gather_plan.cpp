// SPDX-License-Identifier: Apache-2.0
#include "gather_plan.hpp"

#include <algorithm>
#include <iterator>

namespace gpurx::detail {

namespace {

constexpr std::uint32_t smallest_piece = 2 * round_bytes;
constexpr std::uint32_t largest_piece = 16 * round_bytes;

crc_tables make_tables() noexcept
{
    crc_tables tables{};
    tables.products.round_later = crc32c_tables_for(crc32c_shift(round_bytes));
    tables.products.word_later = crc32c_tables_for(crc32c_shift(4));
    std::int64_t bytes = vector_bytes;
    for (auto& table : tables.powers.of_vectors) {
        auto const one = crc32c_shift(bytes);
        auto power = crc32c_shift(0);
        for (auto& entry : table) {
            entry = power;
            power = crc32c_multiply(power, one);
        }
        bytes *= std::ssize(table);
    }
    for (unsigned lane = 0; lane < warp_lanes; ++lane)
        tables.powers.of_lane[lane] = crc32c_shift(std::int64_t{vector_bytes} * (warp_lanes - 1 - lane));
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

crc_tables const& crc_tables_of_gather() noexcept
{
    static auto const tables = make_tables();
    return tables;
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
            auto const room = piece_size - static_cast<std::uint32_t>((destination + offset) % piece_size);
            auto const size = static_cast<std::uint32_t>(rest <= piece_size ? rest : room);
            pieces.push_back({.source = from.address + done, .size = size, .offset = offset});
            done += size;
            offset += size;
        }
    }
    return offset;
}

}  // namespace gpurx::detail
