// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <chrono>
#include <cmath>

namespace gpurx::python {

namespace nb = nanobind;

// Times that a program gives as seconds. Never rounded to nothing, which would mean something else. Throws
// nb::value_error for what is no time: below `least`, not a number, or for ever.
[[nodiscard]] inline std::chrono::milliseconds milliseconds_of(double seconds, char const* name, double least = 0)
{
    constexpr double most = 1e9;  // some thirty years
    if (!(seconds >= least && seconds <= most))
        throw nb::value_error(fmt::format("{} is a number of seconds, not {}; {} is the least, and {} the most", name,
                                          seconds, least, most)
                                  .c_str());
    return std::chrono::milliseconds{std::llround(std::ceil(seconds * 1000))};
}

}  // namespace gpurx::python
