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

    // What S3's pre-signed URLs have: no header field of theirs may be added that was not signed.
    [[nodiscard]] bool is_signed() const { return target.find("X-Amz-Signature=") != std::string::npos; }
};

// Errors: errc::bad_url, and why.advice says what is wrong.
[[nodiscard]] url parse_url(std::string_view text, error_code& code, diagnostics& why);

// Where the answer to a request for `from` with this Location leads. Errors: errc::bad_redirect.
[[nodiscard]] url follow(url const& from, std::string_view location, error_code& code, diagnostics& why);

}  // namespace gpurx::ingest::detail
