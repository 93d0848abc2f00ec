// SPDX-License-Identifier: Apache-2.0
//
// What to change, in words, where a flow or an acceptor reports an error. What speaks against a NIC's settings has
// nic/advice.hpp.
#pragma once

#include <gpurx/error.hpp>

namespace gpurx::detail {

// A literal; empty where the error says it all.
[[nodiscard]] char const* advice_on(error_code code) noexcept;

}  // namespace gpurx::detail
