// SPDX-License-Identifier: Apache-2.0
//
// Who asks an S3 server, and how those say it who know: documents that a container's agent or the instance metadata
// service hands out. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace gpurx::ingest::detail::s3 {

using time_point = std::chrono::sys_seconds;

struct credentials {
    std::string access_key;
    std::string secret_key;
    std::string session_token;  // empty: there is none
    std::optional<time_point> expires;
};

// {"AccessKeyId": …, "SecretAccessKey": …, "Token": …, "Expiration": …}. Empty: `why` says in words what is wrong, and
// nothing of what is secret.
[[nodiscard]] std::optional<credentials> parse_credentials(std::string_view json, std::string& why);

// None is missing, and what is sent can stand in a header.
[[nodiscard]] bool are_usable(credentials const& found) noexcept;

// "2026-11-23T10:00:00Z", also with a fraction of a second.
[[nodiscard]] std::optional<time_point> parse_time(std::string_view text) noexcept;
// "20261123T100000Z"
[[nodiscard]] std::string basic_time(time_point when);

}  // namespace gpurx::ingest::detail::s3
