// SPDX-License-Identifier: Apache-2.0
//
// The plan of a fetch: bytes that nobody has asked for yet, the pieces and blocks to ask for, and the places of bytes.
// Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include <gpurx/ingest/http.hpp>
#include <gpurx/views.hpp>

#include "../byte_range.hpp"

namespace gpurx::ingest::detail {

// What one request asks for, and which of these bytes are wanted: the gaps between come along for nothing.
struct fetch_piece {
    byte_range asked;
    std::deque<byte_range> wanted;
};

// The bytes that nobody has asked for yet, as ranges in order, none touching the next. What is put and taken costs the
// logarithm of how many ranges there are.
class fetch_plan {
  public:
    // What is to be fetched, in the order of the object: the next range, which may touch the last.
    void add(byte_range range);
    // Whoever could not fetch what it took puts it back. Precondition: none of it is in the plan.
    void put(byte_range range);
    // The next bytes, which leave the plan: at most so many are asked for, with gaps of up to `gap` that nobody wants.
    // What somebody has taken is no gap: it has been received, or will be. Empty: there are none.
    [[nodiscard]] fetch_piece take(std::uint64_t at_most, std::uint64_t gap);
    // Those within `range`, which leave the plan.
    [[nodiscard]] std::deque<byte_range> take_within(byte_range range);

    [[nodiscard]] bool empty() const noexcept { return ends_.empty(); }
    // Bytes.
    [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
    [[nodiscard]] std::vector<byte_range> ranges() const;

  private:
    using iterator = std::map<std::uint64_t, std::uint64_t>::iterator;
    // Takes the front of a range, up to there; the range behind.
    iterator cut(iterator range, std::uint64_t end);

    // Whether bytes follow each other, or with such a gap between.
    [[nodiscard]] bool are_joined(std::uint64_t end, std::uint64_t begin, std::uint64_t gap) const;

    std::map<std::uint64_t, std::uint64_t> ends_;  // by begin
    std::map<std::uint64_t, std::uint64_t> gaps_;  // between what was added; ends by begin
    std::uint64_t added_to_ = 0;
    std::uint64_t size_ = 0;
};

// Where bytes of an object belong: placements, in the order of the object.
class placement_map {
  public:
    // False if two of them share a byte, or if one ends beyond `size`.
    [[nodiscard]] bool assign(std::span<placement const> placements, std::uint64_t size);

    // The bytes from `at` on that lie in one piece, at most so many. Precondition: byte `at` has a place.
    [[nodiscard]] memory_span find(std::uint64_t at, std::uint64_t at_most) const noexcept;
    [[nodiscard]] std::span<placement const> all() const noexcept { return placements_; }

  private:
    std::vector<placement> placements_;
};

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
