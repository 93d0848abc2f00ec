// SPDX-License-Identifier: Apache-2.0
//
// The process's environment: variables, small files, and the proxies and credentials that they name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <gpurx/error.hpp>

#include "message.hpp"
#include "url.hpp"

namespace gpurx::ingest::detail {

// A variable of the environment; empty as well as absent: it is not set. What decides by variables takes this.
using environment = std::function<std::string(std::string_view)>;

// The process's own.
[[nodiscard]] std::string variable(std::string_view name);
// Empty if it cannot be read.
[[nodiscard]] std::string content_of(std::string const& path);

// The proxy for requests to `to`, by curl's rules: http_proxy (not in capitals: a CGI program's caller could set that),
// https_proxy, HTTPS_PROXY, all_proxy, ALL_PROXY, and whom no_proxy or NO_PROXY spares. Errors: errc::bad_url for one
// that is none of http.
[[nodiscard]] std::optional<url> proxy_for(url const& to, environment const& variable, error_code& code,
                                           diagnostics& why);

// The same by the process's own variables. Errors: as system_error.
[[nodiscard]] std::optional<url> proxy_for(url const& to);

// Whether a list as that of no_proxy has the host: names with all below them, addresses, networks (10.0.0.0/8), or *.
[[nodiscard]] bool bypasses_proxy(std::string_view host, std::string_view list);

// What the proxy is to be told of who asks: Proxy-Authorization, or nothing.
[[nodiscard]] header_fields proxy_fields(url const& proxy);
// With the server's name, as a proxy wants it.
[[nodiscard]] url in_absolute_form(url to);
// Asks the proxy for a connection to there.
[[nodiscard]] std::string connect_request(url const& to, url const& proxy);

// "Basic ...", of name:password.
[[nodiscard]] std::string basic_authorization(std::string_view user);

// name:password for that host, or for all others (default); empty: there is none.
[[nodiscard]] std::string find_in_netrc(std::string_view netrc, std::string_view host);
// NETRC, or .netrc in the user's home.
[[nodiscard]] std::string netrc_path(environment const& variable);

// What requests to `to` say besides, and nobody else may see: `given` fields, and who asks. That is, the first of
// these: an Authorization in `given`, the bearer token, the URL's user, and, over https only, HF_TOKEN where the host
// is Hugging Face's or HF_ENDPOINT's, and netrc.
[[nodiscard]] header_fields authorization_fields(url const& to, header_fields given, std::string_view bearer,
                                                 environment const& variable, std::string_view netrc);

// Why requests cannot have that field; nullptr: they can.
[[nodiscard]] char const* what_is_wrong(header_field const& field) noexcept;

}  // namespace gpurx::ingest::detail
