// SPDX-License-Identifier: Apache-2.0
//
// Bytes of an object.
#pragma once

#include <cstdint>

namespace gpurx::ingest::detail {

// The end is one beyond the last byte.
struct byte_range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;

    [[nodiscard]] std::uint64_t size() const noexcept { return end - begin; }
    [[nodiscard]] bool empty() const noexcept { return begin == end; }
    friend bool operator==(byte_range const&, byte_range const&) = default;
};

}  // namespace gpurx::ingest::detail
