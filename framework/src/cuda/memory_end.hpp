// SPDX-License-Identifier: Apache-2.0
//
// Where memory ends. To free it waits for all streams of the GPU, and its last holder may be a loan that the thread
// gives back which sees streams pass, for everybody.
#pragma once

namespace gpurx::detail {

class memory_state;

namespace cuda {

// Destroys it here, or from the thread that watches streams in another one.
void end_memory(memory_state* ending) noexcept;

// For the end of the process, behind stop_watching_streams(): what is left ends here. One that waits for a stream is
// given a second.
void finish_memory_ends() noexcept;

}  // namespace cuda

}  // namespace gpurx::detail
