// SPDX-License-Identifier: Apache-2.0
//
// CRC32C on the CPU: by its own instruction, which every x86-64 since 2008 has.
#include <array>
#include <cstring>
#include <gpurx/ingest/frame.hpp>

namespace gpurx::ingest {

namespace {

constexpr std::array<std::uint32_t, 256> make_table()
{
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < table.size(); ++i) {
        auto value = i;
        for (int bit = 0; bit < 8; ++bit)
            value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78 : 0);
        table[i] = value;
    }
    return table;
}

constexpr auto table = make_table();

std::uint32_t by_table(std::span<std::byte const> bytes, std::uint32_t state) noexcept
{
    for (auto const byte : bytes)
        state = table[(state ^ static_cast<std::uint32_t>(byte)) & 0xff] ^ (state >> 8);
    return state;
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::span<std::byte const> bytes,
                                                               std::uint32_t state) noexcept
{
    std::uint64_t wide = state;
    for (; bytes.size() >= sizeof wide; bytes = bytes.subspan(sizeof wide)) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data(), sizeof word);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    return by_table(bytes, static_cast<std::uint32_t>(wide));
}

}  // namespace

std::uint32_t crc32c(std::span<std::byte const> bytes, std::uint32_t before) noexcept
{
    static bool const has_instruction = __builtin_cpu_supports("sse4.2") != 0;
    return ~(has_instruction ? by_instruction(bytes, ~before) : by_table(bytes, ~before));
}

}  // namespace gpurx::ingest
