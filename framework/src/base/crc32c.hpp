// SPDX-License-Identifier: Apache-2.0
//
// CRC32C (Castagnoli, RFC 3720 appendix B.4) as arithmetic in GF(2)[x] modulo its polynomial P, so that parts of a
// message can be summed up in any order: bytes M at distance n from the end count as M * x^(8n). Reflected, as the CRC
// itself is: bit 31 of a word is the coefficient of x^0. Pure, for the CPU and the GPU.
#pragma once

#include <cstdint>

// Marks a function that nvcc compiles for the GPU as well.
#if defined(__CUDACC__)
#define GPURX_BOTH_SIDES __host__ __device__
#else
#define GPURX_BOTH_SIDES
#endif

namespace gpurx::detail {

inline constexpr std::uint32_t crc32c_polynomial = 0x82f63b78;  // 0x1edc6f41 reflected

// x^k repeats after so many: P is (x + 1) times a primitive polynomial of degree 31.
inline constexpr std::uint32_t crc32c_order = 0x7fffffff;

// a * x mod P
GPURX_BOTH_SIDES constexpr std::uint32_t crc32c_times_x(std::uint32_t a) noexcept
{
    return a >> 1 ^ (a & 1 ? crc32c_polynomial : 0);
}

// a * b mod P
GPURX_BOTH_SIDES constexpr std::uint32_t crc32c_multiply(std::uint32_t a, std::uint32_t b) noexcept
{
    std::uint32_t product = 0;
    for (int bit = 31; bit >= 0; --bit) {
        product ^= a >> bit & 1 ? b : 0;
        b = crc32c_times_x(b);
    }
    return product;
}

// x^(8 * bytes), for bytes of either sign.
GPURX_BOTH_SIDES constexpr std::uint32_t crc32c_shift(std::int64_t bytes) noexcept
{
    auto rest = bytes * 8 % std::int64_t{crc32c_order};
    if (rest < 0)
        rest += crc32c_order;
    std::uint32_t power = 0x80000000;   // 1
    std::uint32_t factor = 0x40000000;  // x, then x^2, x^4, ...
    for (; rest != 0; rest >>= 1) {
        if (rest & 1)
            power = crc32c_multiply(power, factor);
        factor = crc32c_multiply(factor, factor);
    }
    return power;
}

// Products with one factor, by four look-ups.
struct crc32c_tables {
    std::uint32_t of[4][256];  // by place and value of a byte
};

constexpr crc32c_tables crc32c_tables_for(std::uint32_t factor) noexcept
{
    crc32c_tables tables{};
    for (unsigned place = 0; place < 4; ++place)
        for (std::uint32_t byte = 0; byte < 256; ++byte)
            tables.of[place][byte] = crc32c_multiply(byte << 8 * place, factor);
    return tables;
}

GPURX_BOTH_SIDES constexpr std::uint32_t crc32c_look_up(crc32c_tables const& tables, std::uint32_t a) noexcept
{
    return tables.of[0][a & 0xff] ^ tables.of[1][a >> 8 & 0xff] ^ tables.of[2][a >> 16 & 0xff] ^ tables.of[3][a >> 24];
}

}  // namespace gpurx::detail
