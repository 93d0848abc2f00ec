// SPDX-License-Identifier: Apache-2.0
//
// Allocations of the calling thread so far: operator new, and aligned_alloc, which Asio uses. For the whole program.
#pragma once

#include <cstddef>

namespace gpurx::test {

[[nodiscard]] std::size_t allocations() noexcept;

// While it lives these allocations fail in the calling thread, but for those made while `except()`, if any, says so.
class no_memory {
  public:
    explicit no_memory(bool (*except)() noexcept = nullptr) noexcept;
    no_memory(no_memory const&) = delete;
    no_memory& operator=(no_memory const&) = delete;
    ~no_memory();
};

}  // namespace gpurx::test
