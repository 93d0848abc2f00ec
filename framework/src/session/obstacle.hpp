// SPDX-License-Identifier: Apache-2.0
//
// Which prerequisite of transport devmem an error is about. Pure.
#pragma once

#include <string_view>

#include <gpurx/error.hpp>
#include <gpurx/session.hpp>

namespace gpurx::detail {

// Of an error that setting up a NIC ended with. `operation`: that of its diagnostics, a name of ours. `by_daemon`:
// gpurxd was asked to.
[[nodiscard]] devmem_obstacle obstacle_of(error_code code, std::string_view operation, bool by_daemon) noexcept;

}  // namespace gpurx::detail
