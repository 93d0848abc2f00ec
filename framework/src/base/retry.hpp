// SPDX-License-Identifier: Apache-2.0
//
// The kernel cleans up after a process that has died, and may not be done: what is refused now is granted in a moment.
#pragma once

#include <chrono>
#include <thread>

namespace gpurx::detail {

// Calls `attempt(last)` until it returns something that is true; `last`: the timeout is over, so it must throw instead
// of returning nothing.
template <class Attempt>
auto retry(std::chrono::milliseconds timeout, Attempt&& attempt)
{
    constexpr std::chrono::milliseconds pause{20};
    auto const deadline = std::chrono::steady_clock::now() + timeout;
    for (;;) {
        auto result = attempt(std::chrono::steady_clock::now() >= deadline);
        if (result)
            return result;
        std::this_thread::sleep_for(pause);
    }
}

}  // namespace gpurx::detail
