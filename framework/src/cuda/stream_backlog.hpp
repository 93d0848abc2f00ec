// SPDX-License-Identifier: Apache-2.0
//
// How far a stream is behind with what reads have given it. Nothing is enqueued to know that: of every so many commands
// a point is kept that somebody has recorded anyway.
#pragma once

#include <cstddef>

#include "gpu_work.hpp"

namespace gpurx::detail::cuda {

// Commands between two points that are kept. A stream is full with as many behind the second as it takes, and no more
// are enqueued while the first has not passed: about 400 of the 1,000 that a driver's queue takes, so that a program's
// own find room.
inline constexpr std::size_t commands_per_window = 192;

// Notes that so many commands were enqueued up to `behind`, which the caller is a holder of.
void add_to(stream_backlog& backlog, std::size_t commands, stream_point& behind) noexcept;

}  // namespace gpurx::detail::cuda
