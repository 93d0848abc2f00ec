// SPDX-License-Identifier: Apache-2.0
//
// Streams whose every byte is known, and quick to make and to compare: each is a window that moves through one table of
// pseudo-random bytes, whose period is a prime number, so that no whole number of pages or segments fits it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpurx::lab {

inline constexpr std::size_t pattern_period = 1'048'573;

// The bytes of stream `seed` from `position` on: at least pattern_period of them.
[[nodiscard]] std::span<std::byte const> pattern(std::uint64_t seed, std::uint64_t position);

// Compares a stream with its pattern, piece by piece.
class pattern_check {
  public:
    explicit pattern_check(std::uint64_t seed) noexcept : seed_{seed} {}

    void take(std::uintptr_t address, std::size_t size);
    [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
    // Pieces that were not what they should be, and where the first of them began.
    [[nodiscard]] std::uint64_t wrong_pieces() const noexcept { return wrong_; }
    [[nodiscard]] std::uint64_t first_wrong() const noexcept { return first_wrong_; }

  private:
    std::uint64_t seed_;
    std::uint64_t position_ = 0;
    std::uint64_t wrong_ = 0;
    std::uint64_t first_wrong_ = 0;
};

}  // namespace gpurx::lab
