// SPDX-License-Identifier: Apache-2.0
//
// The process that answers for metrics: it has no capability, no files but the figures, which it may only read, and
// ends with the daemon. Nothing that is asked of it reaches the daemon or a client.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/syscalls.hpp"

namespace gpurx::gpurxd {

// Until it is killed, as it is at the daemon's end. Throws system_error: ESRCH if that was before.
void answer_for_metrics(std::vector<detail::unique_fd> listening, detail::unique_fd figures, pid_t daemon);

}  // namespace gpurx::gpurxd
