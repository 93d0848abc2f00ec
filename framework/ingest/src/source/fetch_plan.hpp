// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of an object are still to be asked for, and where bytes belong. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
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

}  // namespace gpurx::ingest::detail
