// SPDX-License-Identifier: Apache-2.0
//
// Sizes in bytes: rounding, and text for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpurx::detail {

inline constexpr std::size_t kibibyte = 1024;
inline constexpr std::size_t mebibyte = 1024 * kibibyte;

// The smallest multiple of `unit` (> 0) that is not below `bytes`. Precondition: a size_t holds it.
[[nodiscard]] constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) noexcept
{
    auto const over = bytes % unit;
    return over == 0 ? bytes : bytes + (unit - over);
}

// "4 KiB", "64 MiB", "1.5 GiB", "100 bytes": at most one decimal, rounded down.
[[nodiscard]] std::string size_text(std::uint64_t bytes);

}  // namespace gpurx::detail
