// SPDX-License-Identifier: Apache-2.0
#include "test_pattern.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace gpurx::test {

namespace {

constexpr std::size_t run_length = 4099;
constexpr std::size_t modulus = 251;

// Within a run each byte is 7 more than the one before, modulo 251. All runs are parts of this, from some phase on.
constexpr auto steps = [] {
    std::array<std::byte, run_length + modulus> made{};
    for (std::size_t i = 0; i < made.size(); ++i)
        made[i] = static_cast<std::byte>(7 * i % modulus);
    return made;
}();

// What is left of the run that byte number `offset` lies in.
std::span<std::byte const> rest_of_run(std::size_t offset)
{
    constexpr std::size_t inverse = 36;
    static_assert(7 * inverse % modulus == 1);
    auto const phase = (offset + inverse * (offset / run_length)) % modulus;
    return std::span{steps}.subspan(phase, run_length - offset % run_length);
}

}  // namespace

void fill_with_pattern(std::span<std::byte> bytes, std::size_t offset)
{
    while (!bytes.empty()) {
        auto const run = rest_of_run(offset);
        auto const size = std::min(run.size(), bytes.size());
        std::memcpy(bytes.data(), run.data(), size);
        bytes = bytes.subspan(size);
        offset += size;
    }
}

std::vector<std::byte> pattern(std::size_t offset, std::size_t size)
{
    std::vector<std::byte> bytes(size);
    fill_with_pattern(bytes, offset);
    return bytes;
}

bool is_pattern(std::span<std::byte const> bytes, std::size_t offset)
{
    while (!bytes.empty()) {
        auto const run = rest_of_run(offset);
        auto const size = std::min(run.size(), bytes.size());
        if (std::memcmp(bytes.data(), run.data(), size) != 0)
            return false;
        bytes = bytes.subspan(size);
        offset += size;
    }
    return true;
}

}  // namespace gpurx::test
