// SPDX-License-Identifier: Apache-2.0
#include "pattern.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace gpurx::lab {

namespace {

// Twice, so that a period from anywhere in the first half is contiguous.
std::vector<std::byte> make_table()
{
    std::vector<std::byte> table(2 * pattern_period);
    std::mt19937 generator{20'261'120};
    std::generate_n(table.begin(), pattern_period, [&] { return static_cast<std::byte>(generator()); });
    std::copy_n(table.begin(), pattern_period, table.begin() + pattern_period);
    return table;
}

}  // namespace

std::span<std::byte const> pattern(std::uint64_t seed, std::uint64_t position)
{
    static auto const table = make_table();
    auto const start = static_cast<std::size_t>((seed * 7919 + position) % pattern_period);
    return std::span{table}.subspan(start, pattern_period);
}

void pattern_check::take(std::uintptr_t address, std::size_t size)
{
    auto const* bytes = reinterpret_cast<std::byte const*>(address);
    while (size > 0) {
        auto const expected = pattern(seed_, position_);
        auto const count = std::min(size, expected.size());
        if (std::memcmp(bytes, expected.data(), count) != 0 && wrong_++ == 0)
            first_wrong_ = position_;
        bytes += count;
        size -= count;
        position_ += count;
    }
}

}  // namespace gpurx::lab
