// SPDX-License-Identifier: Apache-2.0
//
// Who asks, as an HTTP header says it. Pure.
#pragma once

#include <string>
#include <string_view>

#include "environment.hpp"
#include "header_field.hpp"
#include "url.hpp"

namespace gpurx::ingest::detail {

// "Basic ...", of name:password.
[[nodiscard]] std::string basic_authorization(std::string_view user);

// name:password for that host, or for all others (default); empty: there is none.
[[nodiscard]] std::string find_in_netrc(std::string_view netrc, std::string_view host);
// NETRC, or .netrc in the user's home.
[[nodiscard]] std::string netrc_path(environment const& variable);

// What requests to `to` say besides, and nobody else may see: `given` fields, and who asks. That is, the first of
// these: an Authorization in `given`, the bearer token, the URL's user, and, over https only, HF_TOKEN where the host
// is Hugging Face's or HF_ENDPOINT's, and netrc.
[[nodiscard]] header_fields asker_fields(url const& to, header_fields given, std::string_view bearer,
                                         environment const& variable, std::string_view netrc);

// Why requests cannot have that field; nullptr: they can.
[[nodiscard]] char const* what_is_wrong(header_field const& field) noexcept;

}  // namespace gpurx::ingest::detail
