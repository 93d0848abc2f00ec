// SPDX-License-Identifier: Apache-2.0
//
// A real NIC for a session: an adapter over nic/nic_claim.hpp.
#pragma once

#include <memory>

#include <gpurx/session.hpp>

#include "session_nic.hpp"

namespace gpurx::detail {

// Claims queues of options.interface and binds the dmabuf to them. Null, with `code` and `why` set, where that fails;
// the NIC is as it was then.
[[nodiscard]] std::unique_ptr<session_nic> claim_nic(rx_session_options const& options, int dmabuf_fd, error_code& code,
                                                     diagnostics& why);

}  // namespace gpurx::detail
