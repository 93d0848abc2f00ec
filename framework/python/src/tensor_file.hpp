// SPDX-License-Identifier: Apache-2.0
//
// TensorFile: a safetensors file that is open, of which tensors and parts of them are fetched one after the other.
#pragma once

#include <nanobind/nanobind.h>

namespace gpurx::python {

void bind_tensor_file(nanobind::module_& module);

}  // namespace gpurx::python
