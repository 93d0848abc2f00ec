// SPDX-License-Identifier: Apache-2.0
//
// Where the next bytes of an async_read belong: one of its destinations, or what is left of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include <gpurx/error.hpp>
#include <gpurx/stream.hpp>

#include "cuda/gpu_work.hpp"

namespace gpurx::detail {

struct landing {
    memory_kind kind = memory_kind::host;
    std::uintptr_t address = 0;
    std::size_t size = 0;
    gpu_stream on;         // that writes there, if kind is device
    bool nowhere = false;  // the bytes are not wanted; there is no address

    [[nodiscard]] std::byte* on_host() const noexcept { return reinterpret_cast<std::byte*>(address); }
};

// Sets `code`, unless it is one already, if the destination or its stream cannot be used.
[[nodiscard]] landing landing_on(destination const& to, error_code& code) noexcept;

}  // namespace gpurx::detail
