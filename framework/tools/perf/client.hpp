// SPDX-License-Identifier: Apache-2.0
//
// The side that sends, and measures latencies: ordinary sockets.
#pragma once

#include <functional>

#include "histogram.hpp"
#include "options.hpp"
#include "wire.hpp"

namespace gpurx::perf {

struct round_result {
    greeting server;
    result received;
    histogram latency;  // of messages: from when they began to be sent until they were acknowledged
};

// Calls `done(round)` for each. Waits half a minute for a server that is not there yet. Throws gpurx::system_error.
void send(client_options const& wanted, std::function<void(round_result const&)> const& done);

}  // namespace gpurx::perf
