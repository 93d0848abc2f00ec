// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpurx::gpurxd {

// Gives up every capability but CAP_NET_ADMIN, for this process and what it starts. Throws system_error if it does not
// have that.
void keep_only_net_admin();

}  // namespace gpurx::gpurxd
