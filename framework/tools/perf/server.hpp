// SPDX-License-Identifier: Apache-2.0
//
// The side that receives.
#pragma once

#include "options.hpp"

namespace gpurx::perf {

// One round after the other, each with a session of its own. Without a number of rounds it goes on until SIGINT or
// SIGTERM, also after one that failed, as when a client went away; with one that ends it. Throws gpurx::system_error if
// a session cannot be opened.
[[nodiscard]] exit_status serve(server_options const& wanted);

}  // namespace gpurx::perf
