// SPDX-License-Identifier: Apache-2.0
//
// Tensors as DLPack capsules, by the rules of the array API standard (__dlpack__, __dlpack_device__).
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "tensor.hpp"

namespace gpurx::python {

[[nodiscard]] std::pair<std::int32_t, std::int32_t> dlpack_device(tensor const& of);

// `stream` is None or what the standard says of it. Without `max_version` the capsule is of the kind that was before
// version 1.0, which cannot say that bytes are not to be written: BufferError for such.
[[nodiscard]] nb::object to_dlpack(tensor const& from, nb::object const& stream,
                                   std::optional<std::pair<int, int>> max_version,
                                   std::optional<std::pair<int, int>> device, std::optional<bool> copy);

}  // namespace gpurx::python
