// SPDX-License-Identifier: Apache-2.0
#include "loan.hpp"

#include <algorithm>
#include <cstring>

namespace gpurx::detail {

void loan::clear() noexcept
{
    fragments.clear();
    consumed = 0;
    bytes = 0;
    charged = 0;
    tokens.clear();
    own_tokens = 0;
    pages.clear();
    host.reset();
    foreign.clear();
}

std::size_t consume(loan& from, std::byte* destination, std::size_t size) noexcept
{
    std::size_t placed = 0;
    while (placed < size && from.consumed < from.fragments.size()) {
        auto& front = from.fragments[from.consumed];
        auto const count = std::min(front.size, size - placed);
        std::memcpy(destination + placed, reinterpret_cast<std::byte const*>(front.address), count);
        placed += count;
        front.address += count;
        front.size -= count;
        if (front.size == 0)
            ++from.consumed;
    }
    from.bytes -= placed;
    return placed;
}

}  // namespace gpurx::detail
