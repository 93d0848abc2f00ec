// SPDX-License-Identifier: Apache-2.0
//
// The bytes that streams and files of the tests consist of. A run of them is copied and compared at once: byte by byte,
// without optimisation and under a sanitizer, that took most of what some tests took.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace gpurx::test {

// Byte number `offset` of every stream.
[[nodiscard]] constexpr std::byte pattern(std::size_t offset) noexcept
{
    return static_cast<std::byte>((offset * 7 + offset / 4099) % 251);
}

// Those from number `offset` on.
void fill_with_pattern(std::span<std::byte> bytes, std::size_t offset);
[[nodiscard]] std::vector<std::byte> pattern(std::size_t offset, std::size_t size);
[[nodiscard]] bool is_pattern(std::span<std::byte const> bytes, std::size_t offset);

}  // namespace gpurx::test
