// SPDX-License-Identifier: Apache-2.0
//
// Where the bytes of an object go: each to its place, or in pieces to who takes them; and into the checksums.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gpurx/ingest/http.hpp>
#include <gpurx/views.hpp>

#include "../source/fetch_plan.hpp"
#include "object_checksums.hpp"

namespace gpurx::ingest::detail {

// Several lanes deliver at a time.
class delivery {
  public:
    explicit delivery(object_checksums& sums) : sums_{sums} {}

    // To these places. False if two of them share a byte, or if one begins before `front` or ends beyond `size`.
    [[nodiscard]] bool to(std::span<placement const> placements, std::uint64_t front, std::uint64_t size);
    void to(piece_consumer take);

    // Bytes of the object that have a place.
    [[nodiscard]] std::vector<byte_range> wanted() const;
    // One of the places that are a GPU's; empty: there is none.
    [[nodiscard]] memory_span on_gpu() const noexcept;

    // Where the bytes from `at` on are to be received, at most so many; in `landing`, if they do not stay there.
    [[nodiscard]] memory_span place_of(std::uint64_t at, std::uint64_t at_most, std::vector<std::byte>& landing) const;
    // They lie there. Throws consumer_failure.
    [[nodiscard]] asio::awaitable<void> async_deliver(std::uint64_t at, memory_span bytes);

  private:
    object_checksums& sums_;
    placement_map places_;
    piece_consumer take_;  // in the place of places, if there is one
};

}  // namespace gpurx::ingest::detail
