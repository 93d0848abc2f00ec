// SPDX-License-Identifier: Apache-2.0
//
// What this process may do.
#pragma once

namespace gpurx::detail {

// CAP_NET_ADMIN in the user namespace that owns this thread's network namespace.
[[nodiscard]] bool may_configure_nics();

}  // namespace gpurx::detail
