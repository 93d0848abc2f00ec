// SPDX-License-Identifier: Apache-2.0
//
// Pages of ListObjectsV2. Pure.
#pragma once

#include <gpurx/ingest/s3.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpurx::ingest::detail::s3 {

struct listing_page {
    std::vector<s3_object> objects;
    std::string next;  // the token to ask for what follows with; empty: nothing does
};

// Of an answer in which keys are URL-encoded. Empty: it is no such page; `why` says in words what is wrong.
[[nodiscard]] std::optional<listing_page> parse_listing(std::string_view xml, std::string_view bucket,
                                                        std::string& why);

}  // namespace gpurx::ingest::detail::s3
