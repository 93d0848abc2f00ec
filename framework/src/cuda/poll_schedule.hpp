// SPDX-License-Identifier: Apache-2.0
//
// How often the driver is asked whether a stream has passed. No clock and no driver here.
#pragma once

#include <algorithm>
#include <chrono>

namespace gpurx::detail::cuda {

using poll_clock = std::chrono::steady_clock;

// How late whoever waits may learn of it: by 1/`share` of the time that he has waited, at least `shortest_pause` and at
// most `longest`.
struct poll_limits {
    int share;
    std::chrono::microseconds longest;
};
// Half of it is what a page waits for on average after a stream has passed that passes often. One question to the
// driver takes about a microsecond, to wake for it some seven: with 40 us a flow of 1 GB/s on a machine with an H200
// took a fifth of a core for that.
inline constexpr std::chrono::microseconds shortest_pause{80};
// Pages: nobody waits for one page. With 64 streams that stand still there are 4,000 questions a second, in 63 wake-
// ups.
inline constexpr poll_limits limits_of_pages{8, std::chrono::milliseconds{16}};
// Somebody waits for the stream itself.
inline constexpr poll_limits limits_of_waits{64, std::chrono::milliseconds{1}};

// Long pauses end at multiples of this, doubled as often as the pause allows: a `longest` that is such a multiple has
// all streams that stand still asked for in one wake-up.
inline constexpr std::chrono::nanoseconds turn{31'250};
static_assert(limits_of_pages.longest == turn * 512 && limits_of_waits.longest == turn * 32);

// When to look again for a stream that is waited for since `since`, and had not passed at `now`.
[[nodiscard]] inline poll_clock::time_point next_poll(poll_clock::time_point now, poll_clock::time_point since,
                                                      poll_limits const& with) noexcept
{
    auto const pause = std::clamp<poll_clock::duration>((now - since) / with.share, shortest_pause, with.longest);
    auto step = poll_clock::duration{turn};
    while (step * 2 <= pause)
        step *= 2;
    auto const end = now + pause;
    return step > shortest_pause ? end - end.time_since_epoch() % step : end;
}

}  // namespace gpurx::detail::cuda
