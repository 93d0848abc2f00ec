// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <fmt/chrono.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>

using namespace std::chrono_literals;

std::string size_text(double bytes)
{
    constexpr std::array units{"bytes", "KiB", "MiB", "GiB", "TiB"};
    std::size_t unit = 0;
    for (; bytes >= 1024 && unit + 1 < units.size(); ++unit)
        bytes /= 1024;
    return unit == 0 ? fmt::format("{:.0f} {}", bytes, units[unit]) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

progress::progress() : terminal_{::isatty(STDERR_FILENO) == 1}, every_{terminal_ ? 200ms : 10s} {}

// "[=====>    ]  52 % of 1.5 GiB, "
std::string progress::share_of(std::uint64_t bytes) const
{
    constexpr std::uint64_t width = 20;
    std::uint64_t const all = expected_;
    if (all == 0)
        return {};
    // Headers are counted, too.
    auto const share = static_cast<double>(std::min(bytes, all)) / static_cast<double>(all);
    auto const filled = static_cast<std::uint64_t>(share * width);
    auto const bar = terminal_ ? fmt::format("[{:=<{}}{:>{}}] ", "", filled, "", width - filled) : std::string{};
    return fmt::format("{}{:.0f} % of {}, ", bar, 100 * share, size_text(static_cast<double>(all)));
}

void progress::update(std::uint64_t bytes)
{
    auto const now = clock::now();
    if (start_ == clock::time_point{})
        start_ = displayed_ = now;
    if (now - displayed_ < every_)
        return;
    auto const lately = std::chrono::duration<double>(now - displayed_).count();
    fmt::print(stderr, "{}received {}{}, {}/s, {:%M:%S}{}", terminal_ ? "\r\x1b[K" : "", share_of(bytes),
               size_text(static_cast<double>(bytes)), size_text(static_cast<double>(bytes - displayed_bytes_) / lately),
               std::chrono::floor<std::chrono::seconds>(now - start_), terminal_ ? "" : "\n");
    displayed_ = now;
    displayed_bytes_ = bytes;
}

std::chrono::duration<double> progress::finish()
{
    if (terminal_)
        fmt::print(stderr, "\r\x1b[K");
    return start_ == clock::time_point{} ? 0s : clock::now() - start_;
}
