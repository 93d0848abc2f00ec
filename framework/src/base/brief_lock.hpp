// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace gpurx::detail {

// A mutex for where a receive passes and nobody else is there: taking and giving it are one instruction each, where
// std::mutex makes two calls. Who finds it taken sleeps. BasicLockable.
class brief_lock {
  public:
    void lock() noexcept
    {
        int expected = free;
        if (state_.compare_exchange_strong(expected, taken, std::memory_order_acquire))
            return;
        while (state_.exchange(awaited, std::memory_order_acquire) != free)
            state_.wait(awaited, std::memory_order_relaxed);
    }
    void unlock() noexcept
    {
        if (state_.exchange(free, std::memory_order_release) == awaited)
            state_.notify_one();
    }

  private:
    static constexpr int free = 0;
    static constexpr int taken = 1;
    static constexpr int awaited = 2;  // taken, and somebody may sleep
    std::atomic<int> state_{free};
};

}  // namespace gpurx::detail
