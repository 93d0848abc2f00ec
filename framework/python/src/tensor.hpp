// SPDX-License-Identifier: Apache-2.0
//
// Tensor: bytes with a type and a shape, for other libraries to take through DLPack.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <gpurx/ingest/dtype.hpp>
#include <gpurx/views.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage.hpp"

namespace gpurx::python {

namespace nb = nanobind;

// Row-major and contiguous. Any thread may have it, and destroy it.
struct tensor {
    std::shared_ptr<storage> memory;
    memory_span bytes;
    ingest::dtype type = ingest::dtype::u8;
    std::vector<std::int64_t> shape;
    bool copied = false;  // made by a consumer's wish, who knows

    [[nodiscard]] std::size_t elements() const noexcept;
};

// As numpy and PyTorch call it: "float32", "bfloat16".
[[nodiscard]] std::string_view python_name_of(ingest::dtype type) noexcept;
// "cpu", "cuda:0"
[[nodiscard]] std::string device_name(int gpu);

// In other memory, on a GPU in the order of its stream. Without Python's lock. Throws gpurx::system_error.
[[nodiscard]] tensor copy_to(tensor const& from, int gpu);

// A copy of these bytes, for tests and for those who have a file on disk. Throws nb::value_error if they are not as
// many as type and shape say.
[[nodiscard]] tensor tensor_of_bytes(nb::bytes const& data, std::string_view type, std::vector<std::int64_t> shape,
                                     nb::handle device, bool read_only);

void bind_tensor(nb::module_& module);

}  // namespace gpurx::python
