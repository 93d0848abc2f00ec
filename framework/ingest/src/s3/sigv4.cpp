// SPDX-License-Identifier: Apache-2.0
#include "sigv4.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <boost/algorithm/string/case_conv.hpp>
#include <locale>
#include <new>

namespace gpurx::ingest::detail::s3 {

namespace {

constexpr std::string_view algorithm = "AWS4-HMAC-SHA256";

std::string hex(digest const& bytes)
{
    return fmt::format("{:02x}", fmt::join(bytes, ""));
}

// It and hmac() cannot fail but for want of memory.
digest sha256(std::string_view text)
{
    digest result{};
    if (::EVP_Digest(text.data(), text.size(), result.data(), nullptr, ::EVP_sha256(), nullptr) != 1)
        throw std::bad_alloc{};
    return result;
}

// Without white space at its ends, and with one space where there is more.
std::string squeezed(std::string_view value)
{
    std::string result;
    for (auto const each : value) {
        auto const space = each == ' ' || (each >= '\t' && each <= '\r');
        if (!space)
            result += each;
        else if (!result.empty() && result.back() != ' ')
            result += ' ';
    }
    if (result.ends_with(' '))
        result.pop_back();
    return result;
}

// In order of name and value, each with its '='.
std::string canonical_query(std::string_view query)
{
    std::vector<std::pair<std::string_view, std::string_view>> parameters;
    while (!query.empty()) {
        auto const each = query.substr(0, query.find('&'));
        auto const name = each.substr(0, each.find('='));
        parameters.emplace_back(name, each.substr(std::min(name.size() + 1, each.size())));
        query.remove_prefix(std::min(each.size() + 1, query.size()));
    }
    std::ranges::sort(parameters);
    std::string result;
    for (auto const& [name, value] : parameters)
        result += fmt::format("{}{}={}", result.empty() ? "" : "&", name, value);
    return result;
}

// Names in lower case, in order; values as they are signed.
header_fields canonical_fields(std::span<header_field const> fields)
{
    header_fields result;
    for (auto const& each : fields)
        result.push_back(
            {boost::algorithm::to_lower_copy(std::string{each.name}, std::locale::classic()), squeezed(each.value)});
    std::ranges::sort(result, {}, &header_field::name);
    return result;
}

std::string names_of(header_fields const& fields)
{
    std::string names;
    for (auto const& each : fields)
        names += (names.empty() ? "" : ";") + each.name;
    return names;
}

std::string canonical_request(signed_request const& request, header_fields const& fields)
{
    auto const path = request.target.substr(0, request.target.find('?'));
    auto const query = request.target.substr(std::min(path.size() + 1, request.target.size()));
    auto text = fmt::format("{}\n{}\n{}\n", request.method, path, canonical_query(query));
    for (auto const& each : fields)
        text += fmt::format("{}:{}\n", each.name, each.value);
    return text + fmt::format("\n{}\n{}", names_of(fields), request.payload_hash);
}

digest signing_key(std::string_view secret, std::string_view date, std::string_view region)
{
    auto key = hmac(fmt::format("AWS4{}", secret), date);
    for (auto const each : {region, std::string_view{"s3"}, std::string_view{"aws4_request"}})
        key = hmac(view_of(key), each);
    return key;
}

}  // namespace

digest hmac(std::string_view key, std::string_view text)
{
    digest result{};
    if (::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
               reinterpret_cast<unsigned char const*>(text.data()), text.size(), result.data(), nullptr) == nullptr)
        throw std::bad_alloc{};
    return result;
}

std::string_view view_of(digest const& bytes) noexcept
{
    return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

std::string authorization(signed_request const& request, credentials const& by, std::string_view region,
                          std::string_view time)
{
    auto const date = time.substr(0, 8);
    auto const scope = fmt::format("{}/{}/s3/aws4_request", date, region);
    auto const fields = canonical_fields(request.fields);
    auto const statement =
        fmt::format("{}\n{}\n{}\n{}", algorithm, time, scope, hex(sha256(canonical_request(request, fields))));
    return fmt::format("{} Credential={}/{}, SignedHeaders={}, Signature={}", algorithm, by.access_key, scope,
                       names_of(fields), hex(hmac(view_of(signing_key(by.secret_key, date, region)), statement)));
}

header_fields signature_fields(signed_request const& request, credentials const& by, std::string_view region,
                               time_point now)
{
    auto const time = basic_time(now);
    header_fields added{{"x-amz-content-sha256", std::string{request.payload_hash}}, {"x-amz-date", time}};
    if (!by.session_token.empty())
        added.push_back({"x-amz-security-token", by.session_token});
    auto all = added;
    all.insert(all.end(), request.fields.begin(), request.fields.end());
    added.push_back(
        {"Authorization",
         authorization(
             {.method = request.method, .target = request.target, .fields = all, .payload_hash = request.payload_hash},
             by, region, time)});
    return added;
}

}  // namespace gpurx::ingest::detail::s3
