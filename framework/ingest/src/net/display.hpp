// SPDX-License-Identifier: Apache-2.0
//
// The display of URLs and of a server's words in messages: without secrets, and without what a terminal obeys. Pure.
#pragma once

#include <string>
#include <string_view>

namespace gpurx::ingest::detail {

// No user's name and password, and of a query only the names: a pre-signed URL is as good as a password. A version and
// a part's number stay, as they say which object it is. Of what is no URL all before the last '@' may be a password.
// s3://BUCKET/KEY has no secret.
[[nodiscard]] std::string without_secrets(std::string_view url);

// Control characters and bytes that are no UTF-8 as \x1b, white space as one space; at most so many bytes, and "...".
[[nodiscard]] std::string printable(std::string_view text, std::size_t at_most = 300);

}  // namespace gpurx::ingest::detail
