// SPDX-License-Identifier: Apache-2.0
//
// The side that sends, and measures latencies: ordinary sockets.
#pragma once

#include <functional>

#include "options.hpp"
#include "report.hpp"

namespace gpurx::perf {

// Calls `done(round)` for each. Waits half a minute for a server that is not there yet. Throws gpurx::system_error.
void send(client_options const& wanted, std::function<void(round_result const&)> const& done);

}  // namespace gpurx::perf
