// SPDX-License-Identifier: Apache-2.0
//
// Which blocks of a file to read for which bytes. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "../source/fetch_plan.hpp"

namespace gpurx::ingest::detail {

// What reads past the page cache have to be multiples of. 1: of nothing.
struct read_alignment {
    std::uint64_t offset = 1;  // of the file, for begin and end
    std::uint64_t memory = 1;  // for addresses
};

// The whole blocks that the bytes lie in.
[[nodiscard]] byte_range blocks_around(byte_range bytes, std::uint64_t block) noexcept;

// A piece that ends where no more was to be taken ends with a whole block instead, so that none is read for two pieces.
// What it loses by that.
[[nodiscard]] byte_range end_with_block(fetch_piece& piece, std::uint64_t block) noexcept;

// Bytes that can be read to where they belong, but for less than a block at either end.
struct read_in_place {
    byte_range head;
    byte_range blocks;
    byte_range tail;
};

// Empty: the bytes lie otherwise in memory than in the file, or have no whole block.
[[nodiscard]] std::optional<read_in_place> split_in_place(byte_range bytes, std::uintptr_t address,
                                                          read_alignment needed) noexcept;

}  // namespace gpurx::ingest::detail
