// SPDX-License-Identifier: Apache-2.0
//
// The thread that sees streams pass. It asks the driver for the oldest point of each stream every few dozen
// microseconds, and sleeps when nobody waits: a host function in the stream would stall it, and would never be called
// once the GPU is in error; to block on one event would let a slow stream hold up the others.
#pragma once

#include "stream_point.hpp"

namespace gpurx::detail::cuda {

// Takes the points (a list by `next`), the last of which says whom to tell.
void watch(stream_point* points) noexcept;

// For the end of the process, once ending() says so: whoever waits is told, and no call of the driver is under way
// after it returns.
void stop_watching_streams() noexcept;

}  // namespace gpurx::detail::cuda
