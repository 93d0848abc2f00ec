// SPDX-License-Identifier: Apache-2.0
//
// What S3 says when it refuses. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpurx::ingest::detail::s3 {

struct refusal {
    std::string code;     // "NoSuchKey"
    std::string message;  // in words
    std::string region;   // of the bucket, where another was asked
    std::string request_time, server_time;
};

// Of the body of an answer, or of its beginning. Empty: it is not S3's.
[[nodiscard]] std::optional<refusal> parse_refusal(std::string_view body);

// For people, with what to change where that is known.
[[nodiscard]] std::string words_of(refusal const& said);

// Other credentials might do: these have ended.
[[nodiscard]] bool is_about_expiry(refusal const& said) noexcept;

}  // namespace gpurx::ingest::detail::s3
