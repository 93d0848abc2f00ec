// SPDX-License-Identifier: Apache-2.0
//
// The interfaces that there are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpurx::detail {

// Of this thread's network namespace, by any of its names, as it is now. Throws system_error: ENODEV, with the names of
// those that there are.
unsigned index_of_interface(std::string_view name);

// For who has named another one. Pure.
[[nodiscard]] std::string advice_on_interfaces(std::vector<std::string> const& names);

}  // namespace gpurx::detail
