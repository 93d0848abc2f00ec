// SPDX-License-Identifier: Apache-2.0
//
// What has to be there in static destructors, too, and the first time when the program has no memory left.
#pragma once

#include <cstddef>
#include <new>

namespace gpurx::detail::cuda {

// The only one of its type that is made so: it is made by the first call, and never destroyed. Allocates nothing
// itself.
template <class T>
[[nodiscard]] T& immortal()
{
    alignas(T) static std::byte memory[sizeof(T)];
    static auto* const made = new (memory) T;
    return *made;
}

}  // namespace gpurx::detail::cuda
