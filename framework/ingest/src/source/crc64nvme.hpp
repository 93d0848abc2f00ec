// SPDX-License-Identifier: Apache-2.0
//
// CRC-64/NVME, which S3 makes of every object that is given no other checksum. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpurx::ingest::detail {

// Of bytes in the host's memory; `before`: of what comes before them.
[[nodiscard]] std::uint64_t crc64nvme(std::span<std::byte const> bytes, std::uint64_t before = 0) noexcept;

// Of two pieces, one behind the other, from the CRC of each; the second has `size` bytes.
[[nodiscard]] std::uint64_t crc64nvme_combine(std::uint64_t first, std::uint64_t second, std::uint64_t size) noexcept;

}  // namespace gpurx::ingest::detail
