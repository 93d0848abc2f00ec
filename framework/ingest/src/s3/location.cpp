// SPDX-License-Identifier: Apache-2.0
#include "location.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <gpurx/ingest/error.hpp>

#include "../http/shown.hpp"
#include "../http/url.hpp"

namespace gpurx::ingest::detail::s3 {

namespace {

constexpr std::string_view scheme = "s3://";

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

bool is_host_label(std::string_view bucket) noexcept
{
    return bucket.size() <= 63 && std::ranges::all_of(bucket, [](char each) {
               return is_plain(each) && each != '.' && each != '_' && !(each >= 'A' && each <= 'Z');
           });
}

std::string root_of(std::string_view bucket, service const& at)
{
    if (!at.endpoint.empty()) {
        std::string_view root{at.endpoint};
        while (root.ends_with('/'))
            root.remove_suffix(1);
        return fmt::format("{}/{}", root, bucket);
    }
    auto const host = fmt::format("s3.{}.amazonaws.com{}", at.region, at.region.starts_with("cn-") ? ".cn" : "");
    return "https://" +
           (is_host_label(bucket) ? fmt::format("{}.{}", bucket, host) : fmt::format("{}/{}", host, bucket));
}

}  // namespace

bool is_region(std::string_view text) noexcept
{
    return !text.empty() && text.size() <= 63 && std::ranges::all_of(text, [](char each) {
        return (each >= 'a' && each <= 'z') || (each >= '0' && each <= '9') || each == '-';
    });
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
               .advice = "it has to be of lower-case letters, digits and '-', as us-east-1"};
    }
    if (code)
        throw system_error{code, why};
}

bool is_location(std::string_view text) noexcept
{
    return text.starts_with(scheme);
}

location parse_location(std::string_view text, error_code& code, diagnostics& why)
{
    why = {.operation = "parse", .object = std::string{text}, .kernel_message = {}, .advice = {}};
    auto const rest = text.substr(std::min(scheme.size(), text.size()));
    auto const bucket = rest.substr(0, rest.find('/'));
    code.clear();
    if (is_location(text) && is_bucket(bucket))
        return {std::string{bucket}, std::string{rest.substr(std::min(bucket.size() + 1, rest.size()))}};
    code = errc::bad_url;
    why.advice = "it has to be like s3://bucket/key, the bucket's name of 3 to 255 letters, digits, '-', '.' and '_'";
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

bool is_aws(std::string_view host) noexcept
{
    return host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn");
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

}  // namespace gpurx::ingest::detail::s3
