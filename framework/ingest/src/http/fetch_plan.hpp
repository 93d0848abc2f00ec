// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of an object are still to be asked for, and where bytes belong. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <gpurx/ingest/http.hpp>
#include <gpurx/views.hpp>

#include "answer.hpp"

namespace gpurx::ingest::detail {

// The bytes that nobody has asked for yet, as ranges in order, none touching the next.
class fetch_plan {
  public:
    // Whoever could not fetch what it took puts it back. Precondition: none of it is in the plan.
    void put(byte_range range);
    // The next bytes, at most so many; they leave the plan. Empty: there are none.
    [[nodiscard]] byte_range take(std::uint64_t at_most);
    // Those within `range`, which leave the plan.
    [[nodiscard]] std::vector<byte_range> take_within(byte_range range);

    [[nodiscard]] bool empty() const noexcept { return ranges_.empty(); }
    // Bytes.
    [[nodiscard]] std::uint64_t size() const noexcept;
    [[nodiscard]] std::span<byte_range const> ranges() const noexcept { return ranges_; }

  private:
    std::vector<byte_range> ranges_;
};

// Where bytes of an object belong: placements, in the order of the object.
class placement_map {
  public:
    // False if two of them share a byte, or if one ends beyond `size`.
    [[nodiscard]] bool assign(std::span<placement const> placements, std::uint64_t size);

    // The bytes from `at` on that lie in one piece, at most so many. Precondition: byte `at` has a place.
    [[nodiscard]] device_span find(std::uint64_t at, std::uint64_t at_most) const noexcept;
    [[nodiscard]] std::span<placement const> all() const noexcept { return placements_; }

  private:
    std::vector<placement> placements_;
};

}  // namespace gpurx::ingest::detail
