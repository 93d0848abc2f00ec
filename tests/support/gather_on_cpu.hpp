// SPDX-License-Identifier: Apache-2.0
//
// A warp on the CPU: its lanes one after the other. For the test of the arithmetic, and for the fake driver's kernels.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/gather_piece.hpp"

namespace gpurx::test {

inline std::uint32_t product_on_cpu(std::uint32_t sum, std::uint32_t const (&bits)[32])
{
    std::uint32_t all = 0;
    for (unsigned lane = 0; lane < detail::warp_lanes; ++lane)
        all ^= detail::part_of(sum, bits, lane);
    return all;
}

// Moves a piece; returns what it adds to the sum of the frame.
inline std::uint32_t gather_with_crc(detail::piece_layout const& layout, detail::crc_frame const& frame,
                                     detail::crc_tables const& tables)
{
    using namespace detail;
    std::uint32_t sum = 0;
    for (unsigned lane = 0; lane < warp_lanes; ++lane)
        sum ^= gather_lane<lane_crc>(layout, lane, tables.products).share(lane, tables.powers);
    auto const vectors = static_cast<std::uint32_t>((frame.end - layout.counted_to()) / vector_bytes);
    return weigh(sum, vectors, tables.powers, product_on_cpu);
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
