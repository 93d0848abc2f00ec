// SPDX-License-Identifier: Apache-2.0
//
// Queues for a memory, which may be exported in more than one way.
#pragma once

#include <functional>
#include <memory>

#include <gpurx/error.hpp>

#include "lease/session_nic.hpp"
#include "memory/memory_state.hpp"

namespace gpurx::detail {

// Leases queues and binds this dmabuf to them. Null with `code` and `why` set.
using dmabuf_lease = std::function<std::unique_ptr<session_nic>(int dmabuf, error_code& code, diagnostics& why)>;

// With the memory's dmabuf, and if it is the binding that fails, with its other one. Null with the first failure.
// `other`: that was it.
[[nodiscard]] std::unique_ptr<session_nic> lease_for(memory_state& memory, dmabuf_lease const& lease, bool& other,
                                                     error_code& code, diagnostics& why);

}  // namespace gpurx::detail
