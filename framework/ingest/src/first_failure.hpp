// SPDX-License-Identifier: Apache-2.0
//
// Why a group of operations failed.
#pragma once

#include <cstddef>
#include <exception>
#include <span>

namespace gpurx::ingest::detail {

// Throws the first that is not there because of another; `order` is that in which they ended.
inline void rethrow_first(std::span<std::size_t const> order, std::span<std::exception_ptr const> failures)
{
    for (auto const index : order) {
        if (failures[index] != nullptr)
            std::rethrow_exception(failures[index]);
    }
}

}  // namespace gpurx::ingest::detail
