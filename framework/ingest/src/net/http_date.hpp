// SPDX-License-Identifier: Apache-2.0
//
// Dates and times as HTTP writes them (RFC 9110, 5.6.7 and 10.2.3). Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace gpurx::ingest::detail {

// "Sun, 06 Nov 1994 08:49:37 GMT", whatever the locale is. The two obsolete forms are none.
[[nodiscard]] std::optional<std::chrono::sys_seconds> parse_http_date(std::string_view field) noexcept;

// Retry-After: seconds, or a date, against the server's own Date, or our clock where it sends none. Never negative.
[[nodiscard]] std::optional<std::chrono::seconds> parse_retry_after(std::string_view field, std::string_view date,
                                                                    std::chrono::sys_seconds now) noexcept;

}  // namespace gpurx::ingest::detail
