// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <gpurx/views.hpp>
#include <stdexcept>

namespace gpurx::detail {

void throw_not_inside(std::size_t size, std::size_t offset, std::size_t count)
{
    throw std::out_of_range{
        fmt::format("{} bytes from offset {} on are not inside a memory_span of {} bytes", count, offset, size)};
}

}  // namespace gpurx::detail
