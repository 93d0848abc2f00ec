// SPDX-License-Identifier: Apache-2.0
//
// What a user can do about an error: by its code or number, never by the kernel's text. No I/O.
#pragma once

#include <string>
#include <string_view>

#include <gpurx/error.hpp>

namespace gpurx::detail {

// A literal; empty where the error says it all.
[[nodiscard]] char const* advice_on(error_code code) noexcept;
// The same of a read.
[[nodiscard]] char const* advice_on_read(error_code code) noexcept;

// `operation` as in diagnostics::operation; `attribute` of the request that the kernel found at fault, if it said so.
// Empty: nothing certain can be said.
[[nodiscard]] std::string advice_on(std::string_view operation, int error, std::string_view attribute = {});

}  // namespace gpurx::detail
