// SPDX-License-Identifier: Apache-2.0
//
// What is said to whoever runs gpurxd: lines on stderr, which the journal gets.
#pragma once

#include <string_view>

#include "line_rate.hpp"

namespace gpurx::gpurxd {

// A line of its own; what a terminal would obey in it is replaced. Never throws.
void log_line(std::string_view text) noexcept;
// The same, unless there have been too many of late: then the next that is written says how many were not.
void log_line(line_rate& rate, std::string_view text) noexcept;

}  // namespace gpurx::gpurxd
