// SPDX-License-Identifier: Apache-2.0
//
// How a batch of fragments is shared out among warps. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gpurx/rx_buffer.hpp>

#include "gather_piece.hpp"

namespace gpurx::detail {

// Bytes for one warp at a time: all of the GPU's `warps` get some of a small batch, and pieces of a large one stay
// large enough for the work at their ends not to matter.
[[nodiscard]] std::uint32_t gather_piece_size(std::uint64_t batch, std::uint32_t warps) noexcept;

// For the destination of a CRC32C. The tables are the same for all, and made on the first call.
[[nodiscard]] crc_frame crc_frame_for(std::uint64_t destination, std::uint64_t size) noexcept;
[[nodiscard]] crc_tables const& crc_tables_of_gather();

// Appends the pieces of `fragments` to `pieces`: the fragments in order from `offset` of a destination whose address is
// `destination`, those longer than `piece_size` (a multiple of round_bytes) cut where so much of the destination is
// full. Returns the offset behind the last. Precondition: the end is below 4 GiB.
std::uint32_t plan_gather(std::span<fragment const> fragments, std::uint64_t destination, std::uint32_t offset,
                          std::uint32_t piece_size, std::vector<gather_piece>& pieces);

}  // namespace gpurx::detail
