// SPDX-License-Identifier: Apache-2.0
//
// The thread that ends a flow where a session is locked up, and says so where flows starve (pool_state.hpp).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "pool_state.hpp"

namespace gpurx::detail {

// A watchdog watches a subject, and calls it from its own thread only.
class watchdog_subject {
  public:
    watchdog_subject(watchdog_subject const&) = delete;
    watchdog_subject& operator=(watchdog_subject const&) = delete;

    // Empty: no flow waits.
    [[nodiscard]] virtual std::optional<lock_up_sample> look() noexcept = 0;
    // Ends one flow, so that its pages come free.
    virtual void end_a_flow() noexcept = 0;
    // Says that flows wait in vain for pages that the program holds, and who holds them.
    virtual void tell_starved() noexcept = 0;

  protected:
    watchdog_subject() = default;
    ~watchdog_subject() = default;
};

class watchdog {
  public:
    // `limit` > 0. The subject must outlive this object, and may be used from the thread at once.
    watchdog(watchdog_subject& subject, std::chrono::milliseconds limit, lock_up_detector detector);
    watchdog(watchdog const&) = delete;
    watchdog& operator=(watchdog const&) = delete;
    // Stops and joins the thread.
    ~watchdog() = default;

    // A flow has begun to wait; its look() must already show it. Any thread; a load where the watchdog is awake.
    void flow_waits() noexcept;

  private:
    void run(std::stop_token const& stop);
    // False: told to stop.
    [[nodiscard]] bool sleep_until_a_flow_waits(std::stop_token const& stop);

    watchdog_subject& subject_;
    std::chrono::milliseconds period_;
    lock_up_detector detector_;
    std::atomic<bool> asleep_{false};
    std::mutex mutex_;
    std::condition_variable_any wake_;
    std::jthread thread_;  // last: it uses the rest
};

// Aborts the connection: wakes who waits for the socket, and frees at once the pages that TCP holds for it.
void abort_connection(int socket) noexcept;
// Bytes that TCP holds for the socket, as the kernel counts them; 0 if it does not say.
[[nodiscard]] std::uint64_t bytes_held(int socket) noexcept;
// For people: "10.0.0.1:4000 <- 10.0.0.2:5000".
[[nodiscard]] std::string connection_name(int socket);

}  // namespace gpurx::detail
