// SPDX-License-Identifier: Apache-2.0
//
// The parts of gpurx._native: each adds its classes and functions.
#pragma once

#include <nanobind/nanobind.h>

namespace gpurx::python {

namespace nb = nanobind;

void bind_codes(nb::module_& module);
void bind_http_options(nb::module_& module);
void bind_objects(nb::module_& module);
void bind_operation(nb::module_& module);
void bind_sender(nb::module_& module);
void bind_session(nb::module_& module);
void bind_stream(nb::module_& module);
void bind_tensor(nb::module_& module);
void bind_tensor_file(nb::module_& module);

}  // namespace gpurx::python
