// SPDX-License-Identifier: Apache-2.0
#include "lease_memory.hpp"

#include <utility>

namespace gpurx::detail {

std::unique_ptr<session_nic> lease_for(memory_state& memory, dmabuf_lease const& lease, bool& other, error_code& code,
                                       diagnostics& why)
{
    other = false;
    auto nic = lease(memory.dmabuf_fd(), code, why);
    if (nic || why.operation != "bind-rx" || code == boost::system::errc::operation_not_permitted)
        return nic;
    auto const second = memory.other_dmabuf_fd();
    if (second < 0)
        return nullptr;
    error_code refused;
    diagnostics reason;
    nic = lease(second, refused, reason);
    other = nic != nullptr;
    if (other)
        code.clear();
    return nic;
}

}  // namespace gpurx::detail
