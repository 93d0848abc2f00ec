// SPDX-License-Identifier: Apache-2.0
//
// gpurx-doctor tap: opens the ring, and feeds the table and the file until it ends.
#pragma once

#include "../options.hpp"

namespace gpurx::doctor::tap {

// Until SIGINT, SIGTERM or the time is over: blocks these signals for the process. Prints to standard output, with
// --write - to standard error. Throws system_error.
void run(options const& chosen);

}  // namespace gpurx::doctor::tap
