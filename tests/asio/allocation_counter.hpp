// SPDX-License-Identifier: Apache-2.0
//
// Allocations of the calling thread so far: operator new, and aligned_alloc, which Asio uses. For the whole program.
#pragma once

#include <cstddef>

namespace gpurx::test {

[[nodiscard]] std::size_t allocations() noexcept;

}  // namespace gpurx::test
