// SPDX-License-Identifier: Apache-2.0
//
// A warp on the CPU: its lanes one after the other. For the test of the arithmetic, and for the fake driver's kernels.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/gather_piece.hpp"

namespace gpurx::test {

// Moves a piece; returns what it adds to the sum of the frame.
inline std::uint32_t gather_with_crc(detail::piece_layout const& layout, detail::crc_frame const& frame,
                                     detail::crc_tables const& tables)
{
    using namespace detail;
    std::uint32_t sum = 0;
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        auto const of_lane = gather_lane<lane_crc>(layout, lane, tables.products);
        sum ^= crc32c_multiply(of_lane.of_piece(layout, frame, tables.products, tables.powers),
                               tables.powers.of_lane[lane]);
    }
    return sum;
}

// CRC32C bit by bit, as the definition says.
[[nodiscard]] inline std::uint32_t reference_crc32c(std::span<std::uint8_t const> bytes)
{
    std::uint32_t state = 0xffffffff;
    for (auto const byte : bytes) {
        state ^= byte;
        for (int bit = 0; bit < 8; ++bit)
            state = detail::crc32c_times_x(state);
    }
    return ~state;
}

}  // namespace gpurx::test
