// SPDX-License-Identifier: Apache-2.0
//
// http and https URLs, and the URL that a redirect leads to. Pure.
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

// Where the answer to a request for `from` with this Location leads. Never from https to http. Errors:
// errc::bad_redirect.
[[nodiscard]] url follow(url const& from, std::string_view location, error_code& code, diagnostics& why);

}  // namespace gpurx::ingest::detail
