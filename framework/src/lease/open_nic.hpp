// SPDX-License-Identifier: Apache-2.0
//
// Queues of an interface for a session, by whichever way the interface has: leased to it already, or to be set aside.
#pragma once

#include <memory>

#include <gpurx/error.hpp>

#include "queue_lease.hpp"
#include "session_nic.hpp"

namespace gpurx::detail {

// On an error: null, everything undone, `code` and `why` set. Takes some 100 ms.
[[nodiscard]] std::unique_ptr<session_nic> open_nic(queue_lease_config options, error_code& code, diagnostics& why);

}  // namespace gpurx::detail
