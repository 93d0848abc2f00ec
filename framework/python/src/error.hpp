// SPDX-License-Identifier: Apache-2.0
//
// The library's errors as Python's: gpurx.Error, with what was being done, with what, and what to change.
#pragma once

#include <nanobind/nanobind.h>

#include <gpurx/error.hpp>

namespace gpurx::python {

namespace nb = nanobind;

// An instance of gpurx.Error.
[[nodiscard]] nb::object error_object(error_code code, diagnostics const& why);

void bind_codes(nb::module_& module);

// From now on exceptions of the library become gpurx.Error.
void translate_errors();

}  // namespace gpurx::python
