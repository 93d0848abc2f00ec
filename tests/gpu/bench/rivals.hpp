// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of rivals.cu are given.
#pragma once

#include <cstdint>

namespace gpurx::bench {

// A fragment and where it goes. In the GPU's memory: the library's own kernel reads its description across PCIe.
struct rival_piece {
    std::uint64_t source;
    std::uint64_t destination;
    std::uint64_t size;
};

inline constexpr unsigned rival_threads = 256;
// After this long a held stream is let go all the same, so that no mistake hangs a GPU.
inline constexpr std::uint64_t longest_hold_nanoseconds = 2'000'000'000;

}  // namespace gpurx::bench
