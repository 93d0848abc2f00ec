// SPDX-License-Identifier: Apache-2.0
#include "blocks.hpp"

namespace gpurx::ingest::detail {

namespace {

std::uint64_t down(std::uint64_t at, std::uint64_t block) noexcept
{
    return at / block * block;
}

std::uint64_t up(std::uint64_t at, std::uint64_t block) noexcept
{
    return down(at + block - 1, block);
}

}  // namespace

byte_range blocks_around(byte_range bytes, std::uint64_t block) noexcept
{
    return {down(bytes.begin, block), up(bytes.end, block)};
}

byte_range end_with_block(fetch_piece& piece, std::uint64_t block) noexcept
{
    auto& last = piece.wanted.back();
    auto const end = down(last.end, block);
    if (end <= last.begin)
        return {};
    byte_range const rest{end, last.end};
    last.end = piece.asked.end = end;
    return rest;
}

std::optional<read_in_place> split_in_place(byte_range bytes, std::uintptr_t address, read_alignment needed) noexcept
{
    byte_range const blocks{up(bytes.begin, needed.offset), down(bytes.end, needed.offset)};
    if (blocks.begin >= blocks.end || (address + (blocks.begin - bytes.begin)) % needed.memory != 0)
        return std::nullopt;
    return read_in_place{{bytes.begin, blocks.begin}, blocks, {blocks.end, bytes.end}};
}

}  // namespace gpurx::ingest::detail
