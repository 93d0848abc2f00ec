// SPDX-License-Identifier: Apache-2.0
#include "pattern.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gpurx::perf {

namespace {

static_assert(std::endian::native == std::endian::little, "words are compared as they lie");

constexpr std::size_t word = sizeof(std::uint64_t);

// Knuth's multiplier for linear congruential generators, so that neighbours differ in most bytes.
constexpr std::uint64_t value_at(std::uint32_t flow, std::uint64_t offset) noexcept
{
    return (offset / word + 1) * 6364136223846793005U + flow;
}

}  // namespace

void fill(std::span<std::byte> to, std::uint32_t flow, std::uint64_t offset) noexcept
{
    for (std::size_t at = 0; at < to.size(); at += word) {
        auto const value = value_at(flow, offset + at);
        std::memcpy(to.data() + at, &value, word);
    }
}

void pattern_check::look_at(std::span<std::byte const> bytes) noexcept
{
    auto const before = std::min<std::size_t>((word - offset_ % word) % word, bytes.size());
    look_at_part(bytes.first(before));
    bytes = bytes.subspan(before);
    auto const whole = bytes.size() / word * word;
    for (std::size_t at = 0; at < whole; at += word) {
        std::uint64_t there = 0;
        std::memcpy(&there, bytes.data() + at, word);
        wrong_words_ += there == value_at(flow_, offset_ + at) ? 0U : 1U;
    }
    offset_ += whole;
    look_at_part(bytes.subspan(whole));
}

// Of one word.
void pattern_check::look_at_part(std::span<std::byte const> bytes) noexcept
{
    if (bytes.empty())
        return;
    auto const value = value_at(flow_, offset_);
    auto const* const expected = reinterpret_cast<std::byte const*>(&value) + offset_ % word;
    wrong_words_ += std::memcmp(bytes.data(), expected, bytes.size()) == 0 ? 0U : 1U;
    offset_ += bytes.size();
}

}  // namespace gpurx::perf
