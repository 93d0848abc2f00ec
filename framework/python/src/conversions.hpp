// SPDX-License-Identifier: Apache-2.0
//
// Values of Python as those of the library, and back: errors, text, times, devices.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <gpurx/error.hpp>
#include <string_view>

namespace gpurx::python {

namespace nb = nanobind;

// An instance of gpurx.Error, with what was being done, with what, and what to change.
[[nodiscard]] nb::object error_object(error_code code, diagnostics const& why);

// From now on exceptions of the library become gpurx.Error.
void translate_errors();

// All of it: names of tensors may have a NUL, and so may errors that name them. What is no UTF-8, as what a server says
// need not be, is replaced.
[[nodiscard]] nb::str text_of(std::string_view text);

// Times that a program gives as seconds. Never rounded to nothing, which would mean something else. Throws
// nb::value_error for what is no time: below `least`, not a number, or for ever.
[[nodiscard]] std::chrono::milliseconds milliseconds_of(double seconds, char const* name, double least = 0);

// In the place of a GPU's ordinal.
inline constexpr int host = -1;

// The one rule for every device= and memory=. A GPU's number for 0, "gpu:0", "cuda:0", "gpu", "cuda", and what has type
// "cuda" and an index, as torch.device has; `host` for None, "host", "cpu" and a device of type "cpu". Throws
// nb::value_error for another name or number, nb::type_error for what is neither.
[[nodiscard]] int parse_device(nb::handle device);

}  // namespace gpurx::python
