// SPDX-License-Identifier: Apache-2.0
//
// The bytes of the load: words of 8 bytes that say where in their flow's stream they are, so that what is lost, doubled
// or in a wrong place is seen. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpurx::perf {

// `offset`: of the first byte in the stream; a multiple of 8, and so is the size.
void fill(std::span<std::byte> to, std::uint32_t flow, std::uint64_t offset) noexcept;

// Bytes of one flow's stream, in pieces of any size.
class pattern_check {
  public:
    explicit pattern_check(std::uint32_t flow) noexcept : flow_{flow} {}

    // The next ones.
    void look_at(std::span<std::byte const> bytes) noexcept;
    [[nodiscard]] std::uint64_t bytes() const noexcept { return offset_; }
    // Words that have a byte that is not the pattern's; one that lies in two pieces may count twice.
    [[nodiscard]] std::uint64_t wrong_words() const noexcept { return wrong_words_; }

  private:
    void look_at_part(std::span<std::byte const> bytes) noexcept;

    std::uint32_t flow_;
    std::uint64_t offset_ = 0;
    std::uint64_t wrong_words_ = 0;
};

}  // namespace gpurx::perf
