// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace gpurx::python {

void bind_ranges(nanobind::module_& module);

}  // namespace gpurx::python
