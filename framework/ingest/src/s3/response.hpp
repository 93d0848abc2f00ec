// SPDX-License-Identifier: Apache-2.0
//
// S3's responses: pages of ListObjectsV2, and refusals. They use a subset of XML: elements without attributes, none
// inside an element of the same name. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/ingest/s3.hpp>

namespace gpurx::ingest::detail::s3 {

// Returns the content of the first element with this name; empty if there is none, or if it does not end.
[[nodiscard]] std::optional<std::string_view> element(std::string_view xml, std::string_view name) noexcept;
// The same. Afterwards `xml` begins after the element.
[[nodiscard]] std::optional<std::string_view> next_element(std::string_view& xml, std::string_view name) noexcept;
// Returns text with entities such as &amp; as characters.
[[nodiscard]] std::string unescaped(std::string_view text);
// Returns the text of the first element with this name; empty if there is none.
[[nodiscard]] std::string text_of(std::string_view xml, std::string_view name);

struct listing_page {
    std::vector<s3_object> objects;
    std::string next;  // token for the request of the next page; empty: last page
};

// Parses a response with URL-encoded keys. Empty if it is not such a page; `why` then has the reason.
[[nodiscard]] std::optional<listing_page> parse_listing(std::string_view xml, std::string_view bucket,
                                                        std::string& why);

struct refusal {
    std::string code;     // "NoSuchKey"
    std::string message;  // text for people
    std::string region;   // of the bucket, if the request went to another
    std::string request_time, server_time;
};

// Parses the body of a response, or its beginning. Empty if it is not S3's.
[[nodiscard]] std::optional<refusal> parse_refusal(std::string_view body);

// Returns text for people, with advice if there is any.
[[nodiscard]] std::string words_of(refusal const& said);

// Returns whether the credentials have expired, so that others may succeed.
[[nodiscard]] bool is_about_expiry(refusal const& said) noexcept;

}  // namespace gpurx::ingest::detail::s3
