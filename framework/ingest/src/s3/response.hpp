// SPDX-License-Identifier: Apache-2.0
//
// S3's answers: pages of ListObjectsV2, and refusals. They use little of XML: elements without attributes, none within
// one of its own name. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/ingest/s3.hpp>

namespace gpurx::ingest::detail::s3 {

// What stands in the first element of that name; empty: there is none, or it does not end.
[[nodiscard]] std::optional<std::string_view> element(std::string_view xml, std::string_view name) noexcept;
// The same, and `xml` begins behind it afterwards.
[[nodiscard]] std::optional<std::string_view> next_element(std::string_view& xml, std::string_view name) noexcept;
// Text with &amp; and its like as characters.
[[nodiscard]] std::string unescaped(std::string_view text);
// The text of the first element of that name; empty: there is none.
[[nodiscard]] std::string text_of(std::string_view xml, std::string_view name);

struct listing_page {
    std::vector<s3_object> objects;
    std::string next;  // the token to ask for what follows with; empty: nothing does
};

// Of an answer in which keys are URL-encoded. Empty: it is no such page; `why` says in words what is wrong.
[[nodiscard]] std::optional<listing_page> parse_listing(std::string_view xml, std::string_view bucket,
                                                        std::string& why);

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
