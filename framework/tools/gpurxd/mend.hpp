// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "machine.hpp"

namespace gpurx::gpurxd {

// Puts back what dead processes left on the interfaces that the policy names, and says so on stderr. Blocks.
void mend(places const& where) noexcept;

}  // namespace gpurx::gpurxd
