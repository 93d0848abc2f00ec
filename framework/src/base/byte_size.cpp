// SPDX-License-Identifier: Apache-2.0
#include "byte_size.hpp"

#include <fmt/format.h>

#include <array>

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

}  // namespace gpurx::detail
