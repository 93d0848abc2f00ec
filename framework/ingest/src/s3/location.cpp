// SPDX-License-Identifier: Apache-2.0
#include "location.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <gpurx/ingest/error.hpp>

#include "../net/url.hpp"

namespace gpurx::ingest::detail::s3 {

namespace {

constexpr std::size_t scheme_size = 5;  // of s3://, gs:// and az://

bool is_plain(char each) noexcept
{
    return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') || (each >= '0' && each <= '9') ||
           each == '-' || each == '.' || each == '_';
}

// Buckets that were made long ago may have long names, capital letters and underscores.
bool is_bucket(std::string_view name) noexcept
{
    return name.size() >= 3 && name.size() <= 255 && std::ranges::all_of(name, is_plain) && name.front() != '.' &&
           name.find("..") == std::string_view::npos;
}

bool is_lower_or_digit(char each) noexcept
{
    return (each >= 'a' && each <= 'z') || (each >= '0' && each <= '9');
}

// ACCOUNT/CONTAINER. Containers of the service itself begin with '$'.
bool is_container(std::string_view text) noexcept
{
    auto const account = text.substr(0, text.find('/'));
    auto name = text.substr(std::min(account.size() + 1, text.size()));
    if (name.starts_with('$'))
        name.remove_prefix(1);
    auto const is_valid = [](char each) { return is_lower_or_digit(each) || each == '-'; };
    return account.size() >= 3 && account.size() <= 24 && std::ranges::all_of(account, is_lower_or_digit) &&
           name.size() >= 3 && name.size() <= 63 && std::ranges::all_of(name, is_valid) &&
           is_lower_or_digit(name.front()) && is_lower_or_digit(name.back()) &&
           name.find("--") == std::string_view::npos;
}

store store_of(std::string_view text) noexcept
{
    return text.starts_with("gs:") ? store::google : text.starts_with("az:") ? store::azure : store::aws;
}

// Where the bucket of the text ends.
std::size_t end_of_bucket(std::string_view text) noexcept
{
    auto const end = text.find('/', std::min(scheme_size, text.size()));
    return store_of(text) == store::azure && end != std::string_view::npos ? text.find('/', end + 1) : end;
}

bool is_in_host(std::string_view bucket) noexcept
{
    return bucket.size() <= 63 && std::ranges::all_of(bucket, [](char each) {
               return is_plain(each) && each != '_' && !(each >= 'A' && each <= 'Z');
           });
}

bool is_by_host(std::string_view bucket, service const& at) noexcept
{
    using enum s3_options::addressing;
    if (at.style == path || !is_in_host(bucket))
        return false;
    return at.style == virtual_host || (at.endpoint.empty() && bucket.find('.') == std::string_view::npos);
}

// Takes it off.
std::string_view last_label(std::string_view& host) noexcept
{
    auto const dot = host.rfind('.');
    auto const label = dot == std::string_view::npos ? host : host.substr(dot + 1);
    host.remove_suffix(std::min(label.size() + 1, host.size()));
    return label;
}

bool is_service(std::string_view label) noexcept
{
    return label == "s3" || label == "s3-fips" || label == "s3-accesspoint" || label == "s3-accesspoint-fips";
}

std::string root_of(std::string_view bucket, service const& at)
{
    auto root = at.endpoint;
    if (root.empty())
        root = aws_url("s3", at.region);
    while (root.ends_with('/'))
        root.pop_back();
    // The endpoint of Azure includes the account.
    if (!is_by_host(bucket, at))
        return fmt::format("{}/{}", root, bucket.substr(bucket.find('/') + 1));
    // A user's name would stand before the host.
    auto const authority = root.find("://") + 3;
    auto const host = std::max(authority, root.rfind('@', root.find('/', authority)) + 1);
    return root.insert(host, fmt::format("{}.", bucket));
}

}  // namespace

std::string_view scheme_of(store one) noexcept
{
    return one == store::google ? "gs" : one == store::azure ? "az" : "s3";
}

service google_service(s3_options const& options, environment const& variable)
{
    auto endpoint = options.endpoint.empty() ? variable("STORAGE_EMULATOR_HOST") : options.endpoint;
    if (!endpoint.empty() && endpoint.find("://") == std::string::npos)
        endpoint.insert(0, "http://");
    return {.endpoint = endpoint.empty() ? "https://storage.googleapis.com" : endpoint,
            .region = options.region.empty() ? "auto" : options.region,
            .style = options.style};
}

bool is_region(std::string_view text) noexcept
{
    return !text.empty() && text.size() <= 63 && std::ranges::all_of(text, [](char each) {
        return (each >= 'a' && each <= 'z') || (each >= '0' && each <= '9') || each == '-';
    });
}

std::string aws_url(std::string_view service, std::string_view region)
{
    auto const zone = is_region(region) ? fmt::format(".{}", region) : std::string{};
    return "https://" + fmt::format("{}{}.amazonaws.com{}", service, zone, zone.starts_with(".cn-") ? ".cn" : "");
}

void check(service const& at)
{
    error_code code;
    diagnostics why;
    if (!at.endpoint.empty())
        static_cast<void>(parse_url(at.endpoint, code, why));
    if (!code && !at.region.empty() && !is_region(at.region)) {
        code = errc::bad_url;
        why = {.operation = "use",
               .object = fmt::format("the region \"{}\"", printable(at.region, 100)),
               .kernel_message = {},
               .advice = "it must consist of lower-case letters, digits and '-', as us-east-1"};
    }
    if (code)
        throw system_error{code, why};
}

bool is_location(std::string_view text) noexcept
{
    return text.starts_with("s3://") || text.starts_with("gs://") || text.starts_with("az://");
}

bool is_prefix(std::string_view text) noexcept
{
    return is_location(text) && (text.ends_with('/') || end_of_bucket(text) == std::string_view::npos);
}

bool shares_secrets(std::string_view text, std::string_view other) noexcept
{
    return other.starts_with(text.substr(0, text.find('/', store_of(text) == store::azure ? scheme_size : 0) + 1));
}

std::optional<s3_options::addressing> addressing_named(std::string_view text) noexcept
{
    using enum s3_options::addressing;
    if (text == "path")
        return path;
    if (text == "virtual")
        return virtual_host;
    return text == "auto" ? std::optional{automatic} : std::nullopt;
}

location parse_location(std::string_view text, error_code& code, diagnostics& why)
{
    why = {.operation = "parse", .object = printable(text, 2000), .kernel_message = {}, .advice = {}};
    auto const of = store_of(text);
    auto const begin = std::min(scheme_size, text.size());
    auto const end = std::min(end_of_bucket(text), text.size());
    auto const bucket = text.substr(begin, end - begin);
    code.clear();
    if (is_location(text) && (of == store::azure ? is_container(bucket) : is_bucket(bucket)))
        return {
            .bucket = std::string{bucket}, .key = std::string{text.substr(std::min(end + 1, text.size()))}, .of = of};
    code = errc::bad_url;
    why.advice =
        of == store::azure
            ? "write it like az://account/container/blob, with an account of 3 to 24 lower-case letters and digits, "
              "and a container of 3 to 63, also with '-'"
            : fmt::format(
                  "write it like {}://bucket/key, with a bucket name of 3 to 255 letters, digits, '-', '.' and '_'",
                  scheme_of(of));
    return {};
}

std::string url_of(location const& object, service const& at)
{
    return fmt::format("{}/{}", root_of(object.bucket, at), encoded(object.key, true));
}

std::string url_of(std::string_view bucket, parameters query, service const& at)
{
    auto const root = root_of(bucket, at);
    // Only a host's own root needs a slash: behind a bucket's name it would be an empty key to some servers.
    auto const* const slash = root.find('/', root.find("://") + 3) == std::string::npos ? "/" : "";
    return fmt::format("{}{}?{}", root, slash, query_text(query));
}

// BUCKET.s3.REGION, with variants of each part: s3-REGION and none at all are old, dualstack stands before the region.
bool is_aws(std::string_view host) noexcept
{
    std::string_view const suffix = host.ends_with(".cn") ? ".amazonaws.com.cn" : ".amazonaws.com";
    if (!host.ends_with(suffix))
        return false;
    host.remove_suffix(suffix.size());
    auto label = last_label(host);
    if (label.starts_with("s3-"))
        return true;
    if (!is_service(label))
        label = last_label(host);
    if (label == "dualstack")
        label = last_label(host);
    return is_service(label) || label == "s3-accelerate";
}

std::string encoded(std::string_view text, bool keeps_slashes)
{
    std::string result;
    for (auto const each : text) {
        if (is_plain(each) || each == '~' || (keeps_slashes && each == '/'))
            result += each;
        else
            result += fmt::format("%{:02X}", static_cast<unsigned char>(each));
    }
    return result;
}

std::string query_text(parameters query)
{
    std::string result;
    for (auto const& [name, value] : query)
        result += fmt::format("{}{}={}", result.empty() ? "" : "&", encoded(name, false), encoded(value, false));
    return result;
}

std::string decoded(std::string_view text, bool plus_is_blank)
{
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
        auto const digits = text.substr(i + 1, 2);
        unsigned value = 0;
        auto const* const end = digits.data() + digits.size();
        auto const [stopped, error] = std::from_chars(digits.data(), end, value, 16);
        auto const is_encoded = text[i] == '%' && digits.size() == 2 && error == std::errc{} && stopped == end;
        result += is_encoded ? static_cast<char>(value) : text[i] == '+' && plus_is_blank ? ' ' : text[i];
        i += is_encoded ? 2 : 0;
    }
    return result;
}

}  // namespace gpurx::ingest::detail::s3
