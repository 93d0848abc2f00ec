// SPDX-License-Identifier: Apache-2.0
//
// How full bound memory is, and what its queues have lost: read from the kernel, which takes no rights.
#pragma once

#include <cstdint>
#include <span>

#include "session_nic.hpp"

namespace gpurx::detail {

class nic_device;  // nic/nic_device.hpp

// Throws system_error. Losses are counted from when the driver began to.
[[nodiscard]] pool_sample look_at_pool(nic_device& device, std::uint32_t dmabuf, std::span<unsigned const> queues);

// The losses since an earlier look. Some drivers begin anew when a queue restarts: then they are those of `now`.
[[nodiscard]] pool_sample losses_since(pool_sample const& before, pool_sample now) noexcept;

}  // namespace gpurx::detail
