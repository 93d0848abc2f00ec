// SPDX-License-Identifier: Apache-2.0
//
// Paths of this machine: texts that name one, and file:// URLs. Pure.
#pragma once

#include <string>
#include <string_view>

#include <gpurx/error.hpp>

namespace gpurx::ingest::detail {

// A file:// URL, or no URL at all.
[[nodiscard]] bool is_local(std::string_view text) noexcept;

// The path. Precondition: is_local(text). Errors: errc::bad_url, and why.advice says what is wrong.
[[nodiscard]] std::string parse_path(std::string_view text, error_code& code, diagnostics& why);

}  // namespace gpurx::ingest::detail
