// SPDX-License-Identifier: Apache-2.0
//
// The plan of a fetch: bytes not requested yet, pieces and blocks of requests, and the places of bytes. Pure.
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

// The bytes of one request, and the wanted ones of them. The request also transfers the gaps in between.
struct fetch_piece {
    byte_range asked;
    std::deque<byte_range> wanted;
};

// The bytes not requested yet, as ordered ranges that do not touch. Operations cost the logarithm of the number of
// ranges.
class fetch_plan {
  public:
    // Adds the next range to fetch, in the order of the object. It may touch the last.
    void add(byte_range range);
    // Returns bytes that were taken but not fetched. Precondition: none of them is in the plan.
    void put(byte_range range);
    // Removes the next bytes from the plan: a request of at most this number of bytes, with unwanted gaps of up to
    // `gap`. Bytes already taken are not a gap: they are received once. Empty if no bytes are left.
    [[nodiscard]] fetch_piece take(std::uint64_t at_most, std::uint64_t gap);
    // Removes the bytes within `range` from the plan.
    [[nodiscard]] std::deque<byte_range> take_within(byte_range range);

    [[nodiscard]] bool empty() const noexcept { return ends_.empty(); }
    // Bytes.
    [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
    [[nodiscard]] std::vector<byte_range> ranges() const;

  private:
    using iterator = std::map<std::uint64_t, std::uint64_t>::iterator;
    // Takes the front of a range, up to there; returns the range behind.
    iterator cut(iterator range, std::uint64_t end);

    // Whether bytes follow each other, or with such a gap between.
    [[nodiscard]] bool are_joined(std::uint64_t end, std::uint64_t begin, std::uint64_t gap) const;

    std::map<std::uint64_t, std::uint64_t> ends_;  // by begin
    std::map<std::uint64_t, std::uint64_t> gaps_;  // between added ranges; ends by begin
    std::uint64_t added_to_ = 0;
    std::uint64_t size_ = 0;
};

// The places of bytes of an object: placements, in the order of the object.
class placement_map {
  public:
    // Returns false if two of them share a byte, or if one ends beyond `size`.
    [[nodiscard]] bool assign(std::span<placement const> placements, std::uint64_t size);

    // Returns the contiguous bytes from `at` on, at most this number. Precondition: byte `at` has a place.
    [[nodiscard]] memory_span find(std::uint64_t at, std::uint64_t at_most) const noexcept;
    [[nodiscard]] std::span<placement const> all() const noexcept { return placements_; }

  private:
    std::vector<placement> placements_;
};

// Alignment of reads that bypass the page cache. 1: none.
struct read_alignment {
    std::uint64_t offset = 1;  // of the file, for begin and end
    std::uint64_t memory = 1;  // for addresses
};

// Returns the whole blocks that contain the bytes.
[[nodiscard]] byte_range blocks_around(byte_range bytes, std::uint64_t block) noexcept;

// A piece that ends at the size limit must end with a whole block, so that no block is read for two pieces. Returns the
// bytes that the piece loses.
[[nodiscard]] byte_range end_with_block(fetch_piece& piece, std::uint64_t block) noexcept;

// Bytes that can be read directly to their place, except less than a block at each end.
struct read_in_place {
    byte_range head;
    byte_range blocks;
    byte_range tail;
};

// Empty if the alignments in memory and in the file differ, or if there is no whole block.
[[nodiscard]] std::optional<read_in_place> split_in_place(byte_range bytes, std::uintptr_t address,
                                                          read_alignment needed) noexcept;

}  // namespace gpurx::ingest::detail
