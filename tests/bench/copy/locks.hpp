// SPDX-License-Identifier: Apache-2.0
//
// Counts the calls of the driver that this program makes while it holds a mutex which several lanes lock.
#pragma once

#include <cstddef>

namespace gpurx::bench {

// Counts for the calling thread as lane `number` (0 to 31) until its end. The count slows the driver's calls down.
void count_as_lane(unsigned number);
[[nodiscard]] std::size_t calls_under_shared_locks();

}  // namespace gpurx::bench
