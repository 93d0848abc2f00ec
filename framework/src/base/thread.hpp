// SPDX-License-Identifier: Apache-2.0
//
// Starts threads; a lock for short sections; retries of refused calls.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <stop_token>
#include <thread>

namespace gpurx::detail {

// Starts a thread that runs `body` under `name` (at most 15 characters, as in /proc). The thread blocks every signal:
// signals are for the program's own threads, and a signal that the program awaits must not reach this thread. No other
// function of the library starts threads. Throws gpurx::system_error if the system cannot start a thread.
[[nodiscard]] std::jthread start_thread(char const* name, std::function<void(std::stop_token const&)> body);

// A mutex for sections of a receive that are rarely contended. Lock and unlock are one instruction each, whereas
// std::mutex makes two calls. A contended lock() sleeps. BasicLockable.
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
    static constexpr int awaited = 2;  // taken, and a thread may sleep
    std::atomic<int> state_{free};
};

// Calls `attempt(last)` until its result converts to true. `last`: the timeout is over, so `attempt` must throw instead
// of returning an empty result. For calls that the kernel refuses while it cleans up after a dead process.
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
