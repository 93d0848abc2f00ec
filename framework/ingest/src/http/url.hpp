// SPDX-License-Identifier: Apache-2.0
//
// Where an object is: http URLs, and what a redirect makes of them. Pure.
#pragma once

#include <string>
#include <string_view>

#include <gpurx/error.hpp>

namespace gpurx::ingest::detail {

struct url {
    std::string text;       // the whole of it
    std::string host;       // a name, or an address without brackets
    std::string port;       // "80" where the URL has none
    std::string authority;  // for the Host field
    std::string target;     // path and query, for the request line

    // Whether a request may have this header field of S3's: with a pre-signed URL only if it was signed as well.
    [[nodiscard]] bool allows(std::string_view field) const;
};

// Errors: errc::bad_url, and why.advice says what is wrong.
[[nodiscard]] url parse_url(std::string_view text, error_code& code, diagnostics& why);

// Where the answer to a request for `from` with this Location leads. Errors: errc::bad_redirect.
[[nodiscard]] url follow(url const& from, std::string_view location, error_code& code, diagnostics& why);

}  // namespace gpurx::ingest::detail
