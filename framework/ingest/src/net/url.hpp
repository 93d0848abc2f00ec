// SPDX-License-Identifier: Apache-2.0
//
// URLs of http and https, targets of redirects, local paths, and their display in messages. Pure.
#pragma once

#include <string>
#include <string_view>

#include <gpurx/error.hpp>

namespace gpurx::ingest::detail {

struct url {
    std::string text;       // the whole URL, including secrets
    std::string display;    // for messages
    std::string host;       // a name, or an address without brackets
    std::string port;       // the scheme's port if the URL has none
    std::string authority;  // for the Host field
    std::string target;     // path and query, for the request line
    bool secure = false;    // https
    std::string user = {};  // name:password, as for Basic; empty: none

    // Returns whether its query has a signature, of any store. It may cover the request's fields, so none may be added.
    [[nodiscard]] bool is_signed() const;
    // Returns whether its signature covers this field, so that each request must have it.
    [[nodiscard]] bool signs(std::string_view field) const;
};

// Returns whether one may receive the secrets of the other.
[[nodiscard]] bool is_same_origin(url const& one, url const& other) noexcept;

// Errors: errc::bad_url; why.advice has the reason.
[[nodiscard]] url parse_url(std::string_view text, error_code& code, diagnostics& why);
// The same. Throws errors as system_error.
[[nodiscard]] url parse_url(std::string_view text);

// Returns the target of a response to a request for `from` with this Location. Never from https to http. Errors:
// errc::bad_redirect.
[[nodiscard]] url follow(url const& from, std::string_view location, error_code& code, diagnostics& why);
// The same. Throws errors as system_error, also if `redirects`, the number of redirects with this one, is above 10.
[[nodiscard]] url follow(url const& from, std::string_view location, unsigned redirects);

// Returns the URL without user name and password, and with only the names of its query, because a pre-signed URL is
// equivalent to a password. It keeps a version and a part number, which identify the object. In text that is not a URL,
// all before the last '@' may be a password. Literal URLs have no secret.
[[nodiscard]] std::string without_secrets(std::string_view url);

// Returns text with escapes such as \x1b for control characters and bytes that are not UTF-8. White space becomes one
// space. Longer text ends after `at_most` bytes, with "...".
[[nodiscard]] std::string printable(std::string_view text, std::size_t at_most = 300);

// Returns whether names stand behind the scheme, as in s3://BUCKET/KEY and hf://ORG/MODEL/FILE: no character of them
// separates a query or a user.
[[nodiscard]] bool is_literal_url(std::string_view text) noexcept;

// Returns whether the name is that of a file in a directory or below it. Names in an index or a list are somebody
// else's, and must not lead elsewhere.
[[nodiscard]] bool is_name_below(std::string_view name) noexcept;

// Returns true for a file:// URL, and for text that is not a URL.
[[nodiscard]] bool is_local(std::string_view text) noexcept;

// Returns the path. Precondition: is_local(text). Errors: errc::bad_url; why.advice has the reason.
[[nodiscard]] std::string parse_path(std::string_view text, error_code& code, diagnostics& why);

}  // namespace gpurx::ingest::detail
