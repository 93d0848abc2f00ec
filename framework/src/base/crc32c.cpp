// SPDX-License-Identifier: Apache-2.0
#include <isa-l/crc.h>

#include <algorithm>
#include <gpurx/crc32c.hpp>

#include "crc32c.hpp"

namespace gpurx {

namespace {

// ISA-L counts in int.
constexpr std::size_t most_at_once = std::size_t{1} << 30;

}  // namespace

std::uint32_t crc32c(std::span<std::byte const> bytes, std::uint32_t before) noexcept
{
    // ISA-L leaves it to its caller to invert the start and the result, and takes for writable what it only reads.
    auto state = ~before;
    while (!bytes.empty()) {
        auto const now = bytes.first(std::min(bytes.size(), most_at_once));
        auto* const data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(now.data()));
        state = ::crc32_iscsi(data, static_cast<int>(now.size()), state);
        bytes = bytes.subspan(now.size());
    }
    return ~state;
}

std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t size) noexcept
{
    using namespace detail;
    return crc32c_multiply(first, crc32c_shift(static_cast<std::int64_t>(size % crc32c_order))) ^ second;
}

}  // namespace gpurx
