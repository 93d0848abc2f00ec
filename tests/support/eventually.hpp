// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <thread>

namespace gpurx::test {

// Whether `condition` holds within ten seconds, or so many: for what another thread, or another process, does.
template <class Condition>
[[nodiscard]] bool eventually(Condition condition, std::chrono::milliseconds within = std::chrono::seconds{10})
{
    constexpr std::chrono::milliseconds pause{10};
    for (auto waited = pause * 0; waited < within; waited += pause) {
        if (condition())
            return true;
        std::this_thread::sleep_for(pause);
    }
    return false;
}

}  // namespace gpurx::test
