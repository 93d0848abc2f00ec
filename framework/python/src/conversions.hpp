// SPDX-License-Identifier: Apache-2.0
//
// Conversion of values between Python and the library: errors, text, times, devices.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <gpurx/error.hpp>
#include <string_view>

namespace gpurx::python {

namespace nb = nanobind;

// Makes an instance of gpurx.Error, with operation, object and advice.
[[nodiscard]] nb::object error_object(error_code code, diagnostics const& why);

// Makes exceptions of the library gpurx.Error from now on.
void translate_errors();

// Converts the whole text: names of tensors, and errors that contain them, may have a NUL. Bytes that are no UTF-8, as
// from a server, are replaced.
[[nodiscard]] nb::str text_of(std::string_view text);

// Converts seconds of a program to a time. Never rounds to 0, which has another meaning. Throws nb::value_error for a
// value below `least`, NaN or infinity.
[[nodiscard]] std::chrono::milliseconds milliseconds_of(double seconds, char const* name, double least = 0);

// Stands for the host instead of a GPU's ordinal.
inline constexpr int host = -1;

// Parses every device= and memory=. Returns a GPU's number for 0, "gpu:0", "cuda:0", "gpu", "cuda", and an object with
// type "cuda" and an index, like torch.device. Returns `host` for None, "host", "cpu" and a device of type "cpu".
// Throws nb::value_error for another name or number, and nb::type_error for another type.
[[nodiscard]] int parse_device(nb::handle device);

}  // namespace gpurx::python
