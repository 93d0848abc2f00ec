// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <thread>

namespace gpurx::test {

// Whether `condition` holds within a minute: for what another thread, or another process, does.
// The minute is of pauses, not of the clock's: a machine that stands still meanwhile does not use it up.
template <class Condition>
[[nodiscard]] bool eventually(Condition condition)
{
    constexpr std::chrono::milliseconds pause{1};
    constexpr std::chrono::minutes within{1};
    for (std::chrono::milliseconds waited{}; waited < within; waited += pause) {
        if (condition())
            return true;
        std::this_thread::sleep_for(pause);
    }
    return false;
}

}  // namespace gpurx::test
