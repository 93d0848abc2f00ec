// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <thread>

namespace gpurx::test {

// Whether `condition` holds within ten seconds: for what another thread does.
template <class Condition>
[[nodiscard]] bool eventually(Condition condition)
{
    for (int i = 0; i < 1000; ++i) {
        if (condition())
            return true;
        std::this_thread::sleep_for(std::chrono::milliseconds{10});
    }
    return false;
}

}  // namespace gpurx::test
