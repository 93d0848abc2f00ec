// SPDX-License-Identifier: Apache-2.0
//
// ISA-L has it from 2.31 on, and what is installed is often older. Polynomials are reflected: bit 63 - n of a number is
// the coefficient of x^n.
#include "crc64nvme.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define GPURX_MULTIPLIES __attribute__((target("pclmul,sse2")))
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#define GPURX_MULTIPLIES __attribute__((target("+crypto")))
#endif

namespace gpurx::ingest::detail {

namespace {

constexpr std::uint64_t polynomial = 0x9a6c9329ac4bc9b5;
constexpr std::uint64_t one = std::uint64_t{1} << 63;

constexpr std::uint64_t times_x(std::uint64_t value) noexcept
{
    return (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0);
}

constexpr std::uint64_t times(std::uint64_t a, std::uint64_t b) noexcept
{
    std::uint64_t product = 0;
    for (; a != 0; a <<= 1, b = times_x(b))
        product ^= (a & one) != 0 ? b : 0;
    return product;
}

constexpr std::uint64_t power_of_x(unsigned exponent) noexcept
{
    auto value = one;
    for (; exponent > 0; --exponent)
        value = times_x(value);
    return value;
}

// tables[n][b]: byte b with n bytes of zero behind it.
using table = std::array<std::uint64_t, 256>;
constexpr auto tables = [] {
    std::array<table, 8> result{};
    for (std::uint64_t byte = 0; byte < 256; ++byte) {
        auto value = byte;
        for (int bit = 0; bit < 8; ++bit)
            value = times_x(value);
        result[0][byte] = value;
    }
    for (std::size_t zeros = 1; zeros < result.size(); ++zeros) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            auto const before = result[zeros - 1][byte];
            result[zeros][byte] = (before >> 8) ^ result[0][before & 0xff];
        }
    }
    return result;
}();

std::uint64_t by_tables(std::uint64_t state, std::span<std::byte const> bytes) noexcept
{
    for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
        std::uint64_t next = 0;
        std::memcpy(&next, bytes.data(), sizeof next);
        state ^= next;
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < 8; ++i)
            sum ^= tables[7 - i][(state >> (8 * i)) & 0xff];
        state = sum;
    }
    for (auto const each : bytes)
        state = (state >> 8) ^ tables[0][(state ^ std::to_integer<std::uint64_t>(each)) & 0xff];
    return state;
}

#if defined(__x86_64__) || defined(__aarch64__)

using vector = std::uint64_t __attribute__((vector_size(16)));
constexpr std::size_t vector_bytes = sizeof(vector);
constexpr std::size_t stride = 4 * vector_bytes;

// The products, without carries, of the first halves and of the second halves, added.
GPURX_MULTIPLIES vector moved_on(vector value, vector by) noexcept
{
#if defined(__x86_64__)
    auto const a = reinterpret_cast<__m128i>(value);
    auto const b = reinterpret_cast<__m128i>(by);
    return reinterpret_cast<vector>(_mm_clmulepi64_si128(a, b, 0x00)) ^
           reinterpret_cast<vector>(_mm_clmulepi64_si128(a, b, 0x11));
#else
    return reinterpret_cast<vector>(vmull_p64(value[0], by[0])) ^ reinterpret_cast<vector>(vmull_p64(value[1], by[1]));
#endif
}

// What the two halves of a vector are multiplied with to move it on by so many bits: the first half is 64 bits further
// from the end. One power less, as a product of two reflected numbers stands one bit too low.
template <unsigned bits>
constexpr vector factors{power_of_x(64 + bits - 1), power_of_x(bits - 1)};

vector load(std::byte const* from) noexcept
{
    vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// Four lanes at once, so that the multiplier need not wait for its own results. Precondition: at least 64 bytes.
GPURX_MULTIPLIES std::uint64_t by_multiplying(std::uint64_t state, std::span<std::byte const> bytes) noexcept
{
    vector sums[4];
    for (std::size_t i = 0; i < 4; ++i)
        sums[i] = load(bytes.data() + i * vector_bytes);
    sums[0] ^= vector{state, 0};
    for (bytes = bytes.subspan(stride); bytes.size() >= stride; bytes = bytes.subspan(stride)) {
        for (std::size_t i = 0; i < 4; ++i)
            sums[i] = moved_on(sums[i], factors<8 * stride>) ^ load(bytes.data() + i * vector_bytes);
    }
    auto sum = sums[0];
    for (std::size_t i = 1; i < 4; ++i)
        sum = moved_on(sum, factors<8 * vector_bytes>) ^ sums[i];
    std::array<std::byte, vector_bytes> rest{};
    std::memcpy(rest.data(), &sum, sizeof sum);
    return by_tables(by_tables(0, rest), bytes);
}

bool can_multiply() noexcept
{
#if defined(__x86_64__)
    static bool const can = __builtin_cpu_supports("pclmul") != 0;
#else
    static bool const can = (::getauxval(AT_HWCAP) & HWCAP_PMULL) != 0;
#endif
    return can;
}

#else

std::uint64_t by_multiplying(std::uint64_t state, std::span<std::byte const> bytes) noexcept
{
    return by_tables(state, bytes);
}
constexpr std::size_t stride = 0;
bool can_multiply() noexcept
{
    return false;
}

#endif

}  // namespace

std::uint64_t crc64nvme(std::span<std::byte const> bytes, std::uint64_t before) noexcept
{
    return ~(bytes.size() >= stride && can_multiply() ? by_multiplying(~before, bytes) : by_tables(~before, bytes));
}

std::uint64_t crc64nvme_combine(std::uint64_t first, std::uint64_t second, std::uint64_t size) noexcept
{
    // x^8, x^16, x^32 …: of those that make up the size.
    auto power = power_of_x(8);
    for (; size > 0; size >>= 1, power = times(power, power)) {
        if ((size & 1) != 0)
            first = times(first, power);
    }
    return first ^ second;
}

}  // namespace gpurx::ingest::detail
