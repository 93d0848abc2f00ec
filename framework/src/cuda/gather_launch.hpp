// SPDX-License-Identifier: Apache-2.0
//
// What a launch hands to the kernels of gather.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gather_piece.hpp"

namespace gpurx::detail {

inline constexpr unsigned gather_block_threads = 256;
// That a processor has room for: leaves a thread 64 registers, so that no compiler has to spill any.
inline constexpr unsigned gather_blocks_at_least = 4;

struct gather_arguments {
    gather_piece const* pieces;  // in pinned host memory
    std::uint32_t count;
    std::uint64_t destination;
};

// All zero between launches. One launch at a time may use it.
struct gather_crc_state {
    std::uint32_t sum;
    std::uint32_t blocks;  // that are done
};

struct gather_crc_arguments {
    crc_tables const* tables;
    gather_crc_state* state;
    std::uint32_t* result;
    crc_frame frame;
};

}  // namespace gpurx::detail
