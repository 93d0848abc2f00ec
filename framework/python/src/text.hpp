// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

namespace gpurx::python {

namespace nb = nanobind;

// All of it: names of tensors may have a NUL, and so may errors that name them. What is no UTF-8, as what a server says
// need not be, is replaced.
[[nodiscard]] inline nb::str text_of(std::string_view text)
{
    return nb::steal<nb::str>(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

}  // namespace gpurx::python
