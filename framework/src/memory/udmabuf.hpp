// SPDX-License-Identifier: Apache-2.0
//
// /dev/udmabuf: a memfd becomes a dmabuf.
#pragma once

#include <cstddef>
#include <optional>

#include <gpurx/error.hpp>

#include "syscalls.hpp"

namespace gpurx::detail {

// The dmabuf, or an empty descriptor with `code` and `why` set. `bytes` of `memfd`, from its start; the memfd must be
// sealed against shrinking.
[[nodiscard]] unique_fd export_memfd(int memfd, std::size_t bytes, error_code& code, diagnostics& why);

// What to change when exporting failed with `code`. `size_limit` is the module's limit in MiB, where it is known.
[[nodiscard]] std::string export_advice(error_code code, std::size_t bytes, std::optional<std::size_t> size_limit);

}  // namespace gpurx::detail
