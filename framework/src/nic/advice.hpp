// SPDX-License-Identifier: Apache-2.0
//
// What a user can do about an errno of one of the kernel's NIC operations. By number, never by the kernel's text. No
// I/O.
#pragma once

#include <string>
#include <string_view>

namespace gpurx::detail {

// `operation` as in diagnostics::operation; `attribute` of the request that the kernel found at fault, if it said so.
// Empty: nothing certain can be said.
[[nodiscard]] std::string advice_on(std::string_view operation, int error, std::string_view attribute = {});

}  // namespace gpurx::detail
