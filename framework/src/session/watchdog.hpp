// SPDX-License-Identifier: Apache-2.0
//
// Whether a session's flows can go on. Locked up: out-of-order data holds every page, so that the missing segment has
// no page to land in, and nobody can give one back. Starved: none is free either, but the program holds some. Why these
// conditions: docs/memory-budget.md.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "lease/session_nic.hpp"

namespace gpurx::detail {

struct lock_up_sample {
    std::chrono::steady_clock::time_point at;
    std::uint64_t pages_on_loan = 0;
    std::uint64_t bytes_delivered = 0;  // by all flows, so far
    std::uint64_t bytes_held = 0;       // by TCP, for flows that wait and so can read none of it: data behind a hole
    std::optional<pool_sample> pool;    // empty: not known, or not asked for

    // False: the state of the pool cannot matter.
    [[nodiscard]] constexpr bool needs_pool() const noexcept { return pages_on_loan > 0 || bytes_held > 0; }
};

// The pages of one large segment: with fewer than that free, a segment may still not fit.
[[nodiscard]] std::uint64_t pages_of_a_segment(std::size_t page_size) noexcept;
// Whether that is so, of `pages` in all.
[[nodiscard]] bool is_dry(pool_sample const& sample, std::uint64_t pages, std::size_t page_size) noexcept;

enum class pool_verdict : std::uint8_t { moving, locked_up, starved };

class lock_up_detector {
  public:
    // `limit` > 0; what a clock cannot tell from for ever is for ever.
    lock_up_detector(std::chrono::milliseconds limit, std::uint64_t pages, std::size_t page_size) noexcept
        : limit_{std::min<std::chrono::milliseconds>(limit, std::chrono::years{100})},
          pages_{pages},
          page_size_{page_size}
    {}

    // Samples in order of time. Another verdict than moving comes once nothing could move for the whole limit: a
    // lock-up then begins anew, that flows starve is said once until something moves.
    [[nodiscard]] pool_verdict judge(lock_up_sample const& sample) noexcept;
    // Nothing waits: what was seen so far is void.
    void reset() noexcept;

  private:
    [[nodiscard]] pool_verdict look_at(lock_up_sample const& sample) const noexcept;
    [[nodiscard]] bool lacks_pages(pool_sample const& then, lock_up_sample const& now) const noexcept;

    std::chrono::nanoseconds limit_;
    std::uint64_t pages_;
    std::size_t page_size_;
    std::optional<lock_up_sample> since_;  // the first of an unbroken row of samples in which nothing could move
    bool told_ = false;                    // that flows starve, in this row
};

// What a watchdog watches. Called from the watchdog's thread only.
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
