// SPDX-License-Identifier: Apache-2.0
//
// The thread that ends a flow of a locked-up session, and reports starving flows (pool_state.hpp).
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

    // Returns a sample; empty if no flow waits.
    [[nodiscard]] virtual std::optional<lock_up_sample> look() noexcept = 0;
    // Ends one flow, so that its pages become free.
    virtual void end_a_flow() noexcept = 0;
    // Reports that flows wait for pages that the program holds, and the holders.
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

    // Call it when a flow has begun to wait; the subject's look() must already include the flow. Any thread. One load
    // if the watchdog is awake.
    void flow_waits() noexcept;

  private:
    void run(std::stop_token const& stop);
    // Returns false if the thread must stop.
    [[nodiscard]] bool sleep_until_a_flow_waits(std::stop_token const& stop);

    watchdog_subject& subject_;
    std::chrono::milliseconds period_;
    lock_up_detector detector_;
    std::atomic<bool> asleep_{false};
    std::mutex mutex_;
    std::condition_variable_any wake_;
    std::jthread thread_;  // last: it uses the rest
};

// Aborts the connection. Wakes operations that wait for the socket, and frees at once the pages that TCP holds for it.
void abort_connection(int socket) noexcept;
// Returns the bytes that TCP holds for the socket, as the kernel counts them; 0 if it does not report them.
[[nodiscard]] std::uint64_t bytes_held(int socket) noexcept;
// For people: "10.0.0.1:4000 <- 10.0.0.2:5000".
[[nodiscard]] std::string connection_name(int socket);

}  // namespace gpurx::detail
