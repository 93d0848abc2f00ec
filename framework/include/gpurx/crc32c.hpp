// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief CRC32C of bytes in host memory, and of adjacent ranges.
///
/// CRC32C has the Castagnoli polynomial (RFC 3720, appendix B.4). gather.hpp computes it in place for bytes in GPU
/// memory and for gathered bytes.
///
/// @par Thread safety
/// Threads may call the functions at the same time.
///
/// @par Cost
/// Some hundredths of a second per GiB: the time to read the bytes. ISA-L computes the CRC32C with the CPU's own
/// instructions for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpurx {

/// @brief Returns the CRC32C of `bytes`, continued from `before`.
/// @param bytes Bytes to read.
/// @param before CRC32C of the bytes in front of `bytes`.
/// @returns The CRC32C; `before` if `bytes` is empty.
[[nodiscard]] std::uint32_t crc32c(std::span<std::byte const> bytes, std::uint32_t before = 0) noexcept;

/// @brief Combines the CRC32Cs of two adjacent ranges, without reading bytes.
///
/// Use it to add up the CRC32Cs of successive batches.
///
/// @param first CRC32C of the first range.
/// @param second CRC32C of the second range.
/// @param size Size of the second range in bytes.
[[nodiscard]] std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t size) noexcept;

}  // namespace gpurx
