// SPDX-License-Identifier: Apache-2.0
//
// CRC32C (Castagnoli; RFC 3720, appendix B.4) of bytes in host memory, and of ranges in a row. Where bytes lie in a
// GPU's memory, or are gathered, gather.hpp computes it in place.
//
// Thread safety: may be called at the same time.
//
// Cost: none but the reading, some hundredths of a second per GiB: it is computed by ISA-L, with what the
// CPU has for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpurx {

// The CRC32C of `bytes`, of which `before` is the CRC32C of those that come before them. Of nothing: `before`.
[[nodiscard]] std::uint32_t crc32c(std::span<std::byte const> bytes, std::uint32_t before = 0) noexcept;

// The CRC32C of two ranges in a row from those of each: what a batch after batch adds up to. `size` is the second's.
// Reads no bytes.
[[nodiscard]] std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t size) noexcept;

}  // namespace gpurx
