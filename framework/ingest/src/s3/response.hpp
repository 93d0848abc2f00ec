// SPDX-License-Identifier: Apache-2.0
//
// Responses of stores: pages of ListObjectsV2 or of Azure's List Blobs, and refusals. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gpurx/ingest/s3.hpp>

#include "location.hpp"

namespace gpurx::ingest::detail::s3 {

struct listing_page {
    std::vector<s3_object> objects;
    std::string next;  // token for the request of the next page; empty: last page
};

// Parses a page. Keys are URL-encoded where it says so. The result has no entries of Azure for directories. Empty if it
// is not such a page; `why` then has the reason.
[[nodiscard]] std::optional<listing_page> parse_listing(std::string_view xml, std::string_view bucket, std::string& why,
                                                        store of = store::aws);

struct refusal {
    std::string code;     // "NoSuchKey"
    std::string message;  // text for people
    std::string region;   // of the bucket, if the request went to another
    std::string request_time, server_time;
};

// Parses the body of a response, or its beginning. Without one it takes the code of the header. Empty if there is none.
[[nodiscard]] std::optional<refusal> parse_refusal(std::string_view body, std::string const& code_of_header = {});

// Returns text for people, with advice if there is any.
[[nodiscard]] std::string words_of(refusal const& said, store of = store::aws);

// Returns whether a later request may succeed, whatever the status says. STS answers 400 to too many requests.
[[nodiscard]] bool is_temporary(refusal const& said) noexcept;

// Returns whether the credentials may have expired, so that others may succeed.
[[nodiscard]] bool is_about_expiry(refusal const& said) noexcept;

}  // namespace gpurx::ingest::detail::s3
