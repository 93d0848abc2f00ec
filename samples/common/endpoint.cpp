// SPDX-License-Identifier: Apache-2.0
#include "endpoint.hpp"

#include <CLI/CLI.hpp>

std::optional<endpoint_name> parse_endpoint(std::string const& text)
{
    auto const colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == text.size())
        return std::nullopt;
    auto host = text.substr(0, colon);
    if (host.front() == '[' && host.back() == ']')
        host = host.substr(1, host.size() - 2);
    else if (host.find(':') != std::string::npos)
        return std::nullopt;
    return endpoint_name{host, text.substr(colon + 1)};
}

endpoint_name endpoint_argument(std::string const& text)
{
    auto const name = parse_endpoint(text);
    if (!name)
        throw CLI::ValidationError{text, "expected HOST:PORT, with a v6 address in brackets"};
    return *name;
}
