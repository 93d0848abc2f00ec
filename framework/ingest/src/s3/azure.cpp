// SPDX-License-Identifier: Apache-2.0
#include "azure.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <boost/algorithm/string/trim.hpp>
#include <boost/beast/core/string.hpp>
#include <map>

namespace gpurx::ingest::detail::s3 {

namespace {

constexpr std::string_view version_field = "x-ms-version";
constexpr std::string_view version = "2024-11-04";

// Of a connection string: "NAME=VALUE;NAME=VALUE".
std::string part_of(std::string_view connection, std::string_view name)
{
    while (!connection.empty()) {
        auto const each = connection.substr(0, connection.find(';'));
        if (each.starts_with(name) && each.substr(name.size()).starts_with('='))
            return std::string{each.substr(name.size() + 1)};
        connection.remove_prefix(std::min(each.size() + 1, connection.size()));
    }
    return {};
}

// Returns whether the endpoint is that of the account: by its host, or by the end of its path.
bool includes(std::string_view endpoint, std::string_view account)
{
    while (endpoint.ends_with('/'))
        endpoint.remove_suffix(1);
    auto const in_path = fmt::format("/{}", account);
    return endpoint.find(fmt::format("://{}.", account)) != std::string_view::npos ||
           (endpoint.ends_with(in_path) && !endpoint.ends_with("/" + in_path));
}

std::string with_account(std::string endpoint, std::string_view account)
{
    while (endpoint.ends_with('/'))
        endpoint.pop_back();
    return endpoint.empty() || includes(endpoint, account) ? endpoint : fmt::format("{}/{}", endpoint, account);
}

// The account, the path as it is sent, and the parameters with names in lower case, in order, without their escapes.
std::string canonical_resource(std::string_view account, std::string_view target)
{
    auto const path = target.substr(0, target.find('?'));
    auto text = fmt::format("/{}{}", account, path);
    std::multimap<std::string, std::string> parameters;
    for (auto query = target.substr(std::min(path.size() + 1, target.size())); !query.empty();) {
        auto const each = query.substr(0, query.find('&'));
        auto const name = each.substr(0, each.find('='));
        parameters.emplace(decoded(name, false), decoded(each.substr(std::min(name.size() + 1, each.size())), false));
        query.remove_prefix(std::min(each.size() + 1, query.size()));
    }
    for (auto const& [name, value] : parameters)
        text += fmt::format("\n{}:{}", name, value);
    return text;
}

// A request without a body, whose date is x-ms-date.
std::string string_to_sign(signed_request const& request, header_fields fields, std::string_view account)
{
    std::ranges::sort(fields, {}, &header_field::name);
    std::string range;
    std::string of_azure;
    for (auto const& each : fields) {
        if (each.name == "Range")
            range = each.value;
        else if (each.name.starts_with("x-ms-"))
            of_azure += fmt::format("{}:{}\n", each.name, each.value);
    }
    constexpr auto const* none = "\n\n\n\n\n\n\n\n\n\n";  // Content-* to If-*
    return fmt::format("{}\n{}{}\n{}{}", request.method, none, range, of_azure,
                       canonical_resource(account, request.target));
}

}  // namespace

azure_setup azure_set_up(s3_options const& options, environment const& variable, std::string_view account,
                         bool may_know)
{
    // The end of a file's line is not a part of its secret.
    auto const value_of = [&](std::string_view name) { return boost::algorithm::trim_copy(variable(name)); };
    auto connection = value_of("AZURE_STORAGE_CONNECTION_STRING");
    auto const named = part_of(connection, "AccountName");
    auto const is_own = named.empty() ? includes(part_of(connection, "BlobEndpoint"), account) : named == account;
    if (!is_own)
        connection.clear();
    auto const owner = value_of("AZURE_STORAGE_ACCOUNT");
    auto const is_owner = owner.empty() ? may_know : owner == account;
    auto const secret = [&](std::string_view name, std::string_view part) {
        auto found = is_owner ? value_of(name) : std::string{};
        return found.empty() ? part_of(connection, part) : found;
    };
    auto const suffix = part_of(connection, "EndpointSuffix");
    azure_setup found{.at = {.endpoint = with_account(options.endpoint, account),
                             .region = "auto",
                             .style = s3_options::addressing::path},
                      .sas = secret("AZURE_STORAGE_SAS_TOKEN", "SharedAccessSignature"),
                      .key = secret("AZURE_STORAGE_KEY", "AccountKey")};
    if (found.at.endpoint.empty())
        found.at.endpoint = with_account(value_of("AZURE_STORAGE_BLOB_ENDPOINT"), account);
    if (found.at.endpoint.empty())
        found.at.endpoint = part_of(connection, "BlobEndpoint");
    if (found.at.endpoint.empty())
        found.at.endpoint =
            "https://" + fmt::format("{}.blob.{}", account, suffix.empty() ? "core.windows.net" : suffix);
    if (found.sas.starts_with('?'))
        found.sas.erase(0, 1);
    return found;
}

std::optional<credentials> shared_key(std::string_view account, std::string_view key)
{
    std::string bytes(key.size(), '\0');
    auto const size =
        ::EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                          reinterpret_cast<unsigned char const*>(key.data()), static_cast<int>(key.size()));
    if (size <= 0)
        return std::nullopt;
    auto const padding = key.size() - 1 - key.find_last_not_of('=');
    bytes.resize(static_cast<std::size_t>(size) - std::min<std::size_t>(padding, 2));
    return credentials{.access_key = std::string{account}, .secret_key = bytes, .session_token = {}, .expires = {}};
}

header_fields azure_fields(signed_request const& request, std::optional<credentials> const& by, time_point now)
{
    auto added = by ? by->fields : header_fields{};
    if (std::ranges::none_of(added, [](auto const& each) { return boost::beast::iequals(each.name, version_field); }))
        added.push_back({std::string{version_field}, std::string{version}});
    if (!by || !by->fields.empty())
        return added;
    added.push_back({"x-ms-date", fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", now)});
    auto all = added;
    all.insert(all.end(), request.fields.begin(), request.fields.end());
    auto const signature = hmac(by->secret_key, string_to_sign(request, std::move(all), by->access_key));
    added.push_back({"Authorization", fmt::format("SharedKey {}:{}", by->access_key, in_base64(view_of(signature)))});
    return added;
}

}  // namespace gpurx::ingest::detail::s3
