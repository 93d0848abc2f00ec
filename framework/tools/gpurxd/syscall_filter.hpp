// SPDX-License-Identifier: Apache-2.0
//
// A process of root's without a capability may still do to others of root's what every user may do to its own: signal
// them, trace them, connect to their sockets. This takes that from it.
#pragma once

namespace gpurx::gpurxd {

// Of this thread, and what it starts; cannot be undone. Needs PR_SET_NO_NEW_PRIVS. A kernel without seccomp, and an
// architecture that this does not know, leave it as it is. Throws system_error.
void lose_other_processes();

}  // namespace gpurx::gpurxd
