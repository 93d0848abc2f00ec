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

// Reads a variable of the environment; empty and absent both mean not set. Functions that depend on variables take it
// as a parameter.
using environment = std::function<std::string(std::string_view)>;

// Variables of this process.
[[nodiscard]] std::string variable(std::string_view name);
// Empty if it cannot be read.
[[nodiscard]] std::string content_of(std::string const& path);

// Returns the proxy for requests to `to`, by curl's rules: http_proxy (not in capitals, because the caller of a CGI
// program could set that), https_proxy, HTTPS_PROXY, all_proxy, ALL_PROXY, and the exceptions in no_proxy or NO_PROXY.
// Errors: errc::bad_url for a proxy that is not http.
[[nodiscard]] std::optional<url> proxy_for(url const& to, environment const& variable, error_code& code,
                                           diagnostics& why);

// The same with this process' variables. Throws errors as system_error.
[[nodiscard]] std::optional<url> proxy_for(url const& to);

// Returns whether a list such as no_proxy has the host. Entries are names with all their subdomains, addresses,
// networks (10.0.0.0/8), or *.
[[nodiscard]] bool bypasses_proxy(std::string_view host, std::string_view list);

// Returns the Proxy-Authorization for the proxy; empty if none.
[[nodiscard]] header_fields proxy_fields(url const& proxy);
// Returns the URL with the server's name in the target, as a proxy requires.
[[nodiscard]] url in_absolute_form(url to);
// Returns the request to the proxy for a connection to `to`.
[[nodiscard]] std::string connect_request(url const& to, url const& proxy);

[[nodiscard]] std::string in_base64(std::string_view bytes);
// Returns "Basic ..." of name:password.
[[nodiscard]] std::string basic_authorization(std::string_view user);

// Returns name:password for the host, or for all other hosts (default); empty if there is none.
[[nodiscard]] std::string find_in_netrc(std::string_view netrc, std::string_view host);
// Returns NETRC, or .netrc in the user's home.
[[nodiscard]] std::string netrc_path(environment const& variable);

// Returns whether it is a URL of Hugging Face, or of the mirror that HF_ENDPOINT names.
[[nodiscard]] bool is_of_hugging_face(url const& to, environment const& variable);
// Returns the file of the token of Hugging Face's tools: HF_TOKEN_PATH, or token in HF_HOME, in
// XDG_CACHE_HOME/huggingface, or in .cache/huggingface of the user's home. Empty if none of them is set.
[[nodiscard]] std::string hub_token_path(environment const& variable);
// Returns HF_TOKEN, or the content of that file.
[[nodiscard]] std::string hub_token(environment const& variable);

// Returns secret fields of requests to `to`: the `given` fields and an Authorization. The latter is the first of: an
// Authorization in `given`, the bearer token, the URL's user and, over https only, hub_token() if is_of_hugging_face(),
// and netrc.
[[nodiscard]] header_fields authorization_fields(url const& to, header_fields given, std::string_view bearer,
                                                 environment const& variable, std::string_view netrc);

// Returns the reason why requests cannot have the field; null if they can.
[[nodiscard]] char const* what_is_wrong(header_field const& field) noexcept;

}  // namespace gpurx::ingest::detail
