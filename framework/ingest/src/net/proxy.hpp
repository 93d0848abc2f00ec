// SPDX-License-Identifier: Apache-2.0
//
// Through whom to ask, as the environment says it. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <gpurx/error.hpp>

#include "environment.hpp"
#include "header_field.hpp"
#include "url.hpp"

namespace gpurx::ingest::detail {

// The proxy for requests to `to`, by curl's rules: http_proxy (not in capitals: a CGI program's caller could set that),
// https_proxy, HTTPS_PROXY, all_proxy, ALL_PROXY, and whom no_proxy or NO_PROXY spares. Errors: errc::bad_url for one
// that is none of http.
[[nodiscard]] std::optional<url> proxy_for(url const& to, environment const& variable, error_code& code,
                                           diagnostics& why);

// Whether a list as that of no_proxy has the host: names with all below them, addresses, networks (10.0.0.0/8), or *.
[[nodiscard]] bool is_spared(std::string_view host, std::string_view list);

// What the proxy is to be told of who asks: Proxy-Authorization, or nothing.
[[nodiscard]] header_fields proxy_fields(url const& proxy);
// With the server's name, as a proxy wants it.
[[nodiscard]] url in_absolute_form(url to);
// Asks the proxy for a connection to there.
[[nodiscard]] std::string connect_request(url const& to, url const& proxy);

}  // namespace gpurx::ingest::detail
