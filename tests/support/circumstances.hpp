// SPDX-License-Identifier: Apache-2.0
//
// Handlers that note where and when they ran, for tests of what every asynchronous operation promises.
#pragma once

#include <cstddef>

#include <gpurx/error.hpp>

#include "counting_allocator.hpp"
#include "tracker_executor.hpp"

namespace gpurx::test {

// Where and when a handler ran.
struct circumstances {
    int calls = 0;
    bool on_token_executor = false;
    bool on_receiver_executor = false;
    bool inside_initiation = false;
    std::size_t memory_alive = 0;
    error_code code;
};

inline constexpr int token_executor = 1;
inline constexpr int receiver_executor = 2;

[[nodiscard]] inline auto note(circumstances& seen, allocation_count* memory = nullptr)
{
    return [&seen, memory](error_code code, auto&&...) {
        ++seen.calls;
        seen.on_token_executor = runs_on(token_executor);
        seen.on_receiver_executor = runs_on(receiver_executor);
        seen.inside_initiation = is_initiating();
        seen.memory_alive = memory == nullptr ? 0 : memory->alive;
        seen.code = code;
    };
}

}  // namespace gpurx::test
