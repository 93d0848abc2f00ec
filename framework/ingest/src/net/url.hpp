// SPDX-License-Identifier: Apache-2.0
//
// URLs: http and https ones, those that redirects lead to, paths of this machine, and the display of each in messages.
// Pure.
#pragma once

#include <string>
#include <string_view>

#include <gpurx/error.hpp>

namespace gpurx::ingest::detail {

struct url {
    std::string text;       // the whole of it, secrets included
    std::string display;    // for messages
    std::string host;       // a name, or an address without brackets
    std::string port;       // that of the scheme where the URL has none
    std::string authority;  // for the Host field
    std::string target;     // path and query, for the request line
    bool secure = false;    // https
    std::string user = {};  // with the password, name:password, as Basic has it; empty: none

    // Whether a request may have this header field of S3's: with a pre-signed URL only if it was signed as well.
    [[nodiscard]] bool allows(std::string_view field) const;
};

// Whether secrets that are meant for one may be shown to the other.
[[nodiscard]] bool is_same_origin(url const& one, url const& other) noexcept;

// Errors: errc::bad_url, and why.advice says what is wrong.
[[nodiscard]] url parse_url(std::string_view text, error_code& code, diagnostics& why);
// The same. Errors: as system_error.
[[nodiscard]] url parse_url(std::string_view text);

// Where the answer to a request for `from` with this Location leads. Never from https to http. Errors:
// errc::bad_redirect.
[[nodiscard]] url follow(url const& from, std::string_view location, error_code& code, diagnostics& why);

// No user's name and password, and of a query only the names: a pre-signed URL is as good as a password. A version and
// a part's number stay, as they say which object it is. Of what is no URL all before the last '@' may be a password.
// s3://BUCKET/KEY has no secret.
[[nodiscard]] std::string without_secrets(std::string_view url);

// Control characters and bytes that are no UTF-8 as \x1b, white space as one space; at most so many bytes, and "...".
[[nodiscard]] std::string printable(std::string_view text, std::size_t at_most = 300);

// A file:// URL, or no URL at all.
[[nodiscard]] bool is_local(std::string_view text) noexcept;

// The path. Precondition: is_local(text). Errors: errc::bad_url, and why.advice says what is wrong.
[[nodiscard]] std::string parse_path(std::string_view text, error_code& code, diagnostics& why);

}  // namespace gpurx::ingest::detail
