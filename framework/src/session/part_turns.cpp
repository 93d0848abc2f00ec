// SPDX-License-Identifier: Apache-2.0
#include "part_turns.hpp"

namespace gpurx::detail {

std::optional<std::size_t> part_turns::next(std::span<part_condition const> parts) noexcept
{
    for (std::size_t tried = 0; tried < parts.size(); ++tried) {
        auto const part = turn_++ % parts.size();
        if (parts[part].free_places > 0 && !parts[part].failed)
            return part;
    }
    return std::nullopt;
}

}  // namespace gpurx::detail
