// SPDX-License-Identifier: Apache-2.0
//
// HOST:PORT, as people write it.
#pragma once

#include <optional>
#include <string>

struct endpoint_name {
    std::string host;
    std::string port;
};

// A v6 address stands in brackets. Empty: the text is something else.
std::optional<endpoint_name> parse_endpoint(std::string const& text);
// The same, for CLI11: throws CLI::ValidationError, which says what was expected.
endpoint_name endpoint_argument(std::string const& text);
