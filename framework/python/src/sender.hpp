// SPDX-License-Identifier: Apache-2.0
//
// TensorSender's part in C++.
#pragma once

#include <nanobind/nanobind.h>

namespace gpurx::python {

void bind_sender(nanobind::module_& module);

}  // namespace gpurx::python
