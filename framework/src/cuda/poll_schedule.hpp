// SPDX-License-Identifier: Apache-2.0
//
// The schedule of queries to the driver whether a stream has passed. It uses no clock and no driver.
#pragma once

#include <algorithm>
#include <chrono>

namespace gpurx::detail::cuda {

using poll_clock = std::chrono::steady_clock;

// Longest delay until a waiting caller learns that a stream has passed: 1/`share` of the time waited so far, at least
// `shortest` and at most `longest`.
struct poll_limits {
    int share;
    std::chrono::microseconds shortest;
    std::chrono::microseconds longest;
};
// A page waits for half of this on average after a stream has passed, if the stream passes often. One query takes about
// a microsecond, and the wake-up for it some seven. With 40 us, a flow of 1 GB/s on a machine with an H200 took a fifth
// of a core for that.
inline constexpr std::chrono::microseconds shortest_pause{80};
// For pages: no caller waits for a single page. With 64 stalled streams there are 4,000 queries a second, in 63
// wake-ups.
inline constexpr poll_limits limits_of_pages{8, shortest_pause, std::chrono::milliseconds{16}};
// For pages of transport copy's pool, until a flow lacks pages: then they are as other pages. A flow of 1 GB/s always
// has pages that wait. So the thread wakes a thousand times a second for it, not twelve thousand times.
inline constexpr poll_limits limits_of_pool{8, std::chrono::milliseconds{1}, std::chrono::milliseconds{16}};
// For callers that wait for the stream itself.
inline constexpr poll_limits limits_of_waits{64, shortest_pause, std::chrono::milliseconds{1}};

// Long pauses end at multiples of this, doubled as often as the pause allows. If `longest` is such a multiple, one
// wake-up queries all stalled streams.
inline constexpr std::chrono::nanoseconds turn{31'250};
static_assert(limits_of_pages.longest == turn * 512 && limits_of_waits.longest == turn * 32);
static_assert(limits_of_pool.longest == limits_of_pages.longest);

// Returns the time of the next query for a stream that was awaited since `since` and had not passed at `now`.
[[nodiscard]] inline poll_clock::time_point next_poll(poll_clock::time_point now, poll_clock::time_point since,
                                                      poll_limits const& with) noexcept
{
    auto const pause = std::clamp<poll_clock::duration>((now - since) / with.share, with.shortest, with.longest);
    auto step = poll_clock::duration{turn};
    while (step * 2 <= pause)
        step *= 2;
    auto const end = now + pause;
    return step > shortest_pause ? end - end.time_since_epoch() % step : end;
}

}  // namespace gpurx::detail::cuda
