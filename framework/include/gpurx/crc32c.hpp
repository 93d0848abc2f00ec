// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief CRC32C of bytes in host memory, and of adjacent ranges.
///
/// CRC32C is the Castagnoli polynomial (RFC 3720, appendix B.4). For bytes in GPU memory, and for gathered bytes,
/// gather.hpp computes it in place.
///
/// @par Thread safety
/// The functions may be called at the same time.
///
/// @par Cost
/// Some hundredths of a second per GiB, the time of reading. ISA-L computes it with the instructions that the CPU has
/// for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpurx {

/// @brief Returns the CRC32C of `bytes`, continued from `before`.
/// @param bytes Bytes to read.
/// @param before CRC32C of the bytes before them.
/// @returns The CRC32C; `before` if `bytes` is empty.
[[nodiscard]] std::uint32_t crc32c(std::span<std::byte const> bytes, std::uint32_t before = 0) noexcept;

/// @brief Returns the CRC32C of two adjacent ranges from those of each, without reading bytes.
///
/// A program adds up the CRC32C of one batch after another with it.
///
/// @param first CRC32C of the first range.
/// @param second CRC32C of the second range.
/// @param size Size of the second range in bytes.
[[nodiscard]] std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t size) noexcept;

}  // namespace gpurx
