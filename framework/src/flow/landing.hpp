// SPDX-License-Identifier: Apache-2.0
//
// Where the next bytes of an async_read belong.
#pragma once

#include <cstddef>
#include <cstdint>

#include <gpurx/stream.hpp>

#include "cuda/gpu_work.hpp"

namespace gpurx::detail {

struct landing {
    memory_kind kind = memory_kind::host;
    std::uintptr_t address = 0;
    gpu_stream on;  // that writes there, if kind is device

    [[nodiscard]] std::byte* on_host() const noexcept { return reinterpret_cast<std::byte*>(address); }
};

}  // namespace gpurx::detail
