// SPDX-License-Identifier: Apache-2.0
//
// CRC-64/NVME, the checksum that S3 computes for objects without another checksum. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpurx::ingest::detail {

// Returns the CRC of bytes in host memory. `before`: the CRC of the bytes before them.
[[nodiscard]] std::uint64_t crc64nvme(std::span<std::byte const> bytes, std::uint64_t before = 0) noexcept;

// Returns the CRC of two adjacent pieces from their CRCs. The second piece has `size` bytes.
[[nodiscard]] std::uint64_t crc64nvme_combine(std::uint64_t first, std::uint64_t second, std::uint64_t size) noexcept;

}  // namespace gpurx::ingest::detail
