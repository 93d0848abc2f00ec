// SPDX-License-Identifier: Apache-2.0
//
// Starts threads, and has them wait: for a lock that is held for a moment, or to try again.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <stop_token>
#include <thread>

namespace gpurx::detail {

// A thread that runs `body` under `name` (at most 15 characters, as /proc shows it) with every signal blocked: the
// program's signals are for its own threads, and one that it has blocked there to wait for it must not find another
// taker. Nothing else in the library starts threads. Throws gpurx::system_error if the system has no thread to give.
[[nodiscard]] std::jthread start_thread(char const* name, std::function<void(std::stop_token const&)> body);

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

// Calls `attempt(last)` until it returns something that is true; `last`: the timeout is over, so it must throw
// instead of returning nothing. For what the kernel refuses while it cleans up after a process that has died.
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
