// SPDX-License-Identifier: Apache-2.0
#include "byte_size.hpp"

#include <fmt/format.h>

#include <array>
#include <stdexcept>

#include <gpurx/views.hpp>

namespace gpurx::detail {

std::string size_text(std::uint64_t bytes)
{
    if (bytes < kibibyte)
        return fmt::format("{} bytes", bytes);
    constexpr std::array units{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    std::size_t unit = 0;
    std::uint64_t scale = kibibyte;
    while (unit + 1 < units.size() && bytes / scale >= 1024) {
        scale *= 1024;
        ++unit;
    }
    auto const whole = bytes / scale;
    auto const tenths = (bytes % scale) * 10 / scale;
    return tenths == 0 ? fmt::format("{} {}", whole, units[unit]) : fmt::format("{}.{} {}", whole, tenths, units[unit]);
}

void throw_not_inside(std::size_t size, std::size_t offset, std::size_t count)
{
    throw std::out_of_range{
        fmt::format("{} bytes from offset {} on are not inside a memory_span of {} bytes", count, offset, size)};
}

}  // namespace gpurx::detail
