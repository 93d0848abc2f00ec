// SPDX-License-Identifier: Apache-2.0
//
// The interfaces of this network namespace, as rtnetlink lists them.
#pragma once

#include <vector>

#include "facts.hpp"

namespace gpurx::doctor {

// What one message says of each; the other facts stay as they are by default. A PCI device has its address.
// Throws system_error.
[[nodiscard]] std::vector<interface_facts> list_interfaces();

}  // namespace gpurx::doctor
