// SPDX-License-Identifier: Apache-2.0
#include "response.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace gpurx::ingest::detail::s3 {

namespace {

constexpr std::array<std::pair<std::string_view, char>, 7> entities{
    {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#34;", '"'}, {"&apos;", '\''}, {"&#39;", '\''}}};

// Where "<NAME>" or "</NAME>" begins.
std::size_t find_tag(std::string_view xml, std::string_view opening, std::string_view name, std::size_t from) noexcept
{
    for (auto at = xml.find(opening, from); at != std::string_view::npos; at = xml.find(opening, at + 1)) {
        auto const rest = xml.substr(at + opening.size());
        if (rest.starts_with(name) && rest.substr(name.size()).starts_with('>'))
            return at;
    }
    return std::string_view::npos;
}

std::optional<std::uint64_t> number_in(std::string_view text) noexcept
{
    std::uint64_t value = 0;
    auto const* const end = text.data() + text.size();
    auto const [stopped, error] = std::from_chars(text.data(), end, value);
    return error == std::errc{} && stopped == end ? std::optional{value} : std::nullopt;
}

// "%20" and "+" as characters. Empty: a '%' without its two digits.
std::optional<std::string> decoded(std::string_view text)
{
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            result += text[i] == '+' ? ' ' : text[i];
            continue;
        }
        auto const digits = text.substr(i + 1, 2);
        unsigned value = 0;
        auto const [stopped, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
        if (digits.size() != 2 || error != std::errc{} || stopped != digits.data() + 2)
            return std::nullopt;
        result += static_cast<char>(value);
        i += 2;
    }
    return result;
}

std::optional<s3_object> object_in(std::string_view contents, std::string_view bucket)
{
    auto const key = element(contents, "Key");
    auto const size = number_in(element(contents, "Size").value_or(std::string_view{}));
    auto const name = key ? decoded(unescaped(*key)) : std::nullopt;
    if (!name || name->empty() || !size)
        return std::nullopt;
    return s3_object{.url = fmt::format("s3://{}/{}", bucket, *name), .size = *size, .etag = text_of(contents, "ETag")};
}

// What is behind a code, where its message does not say it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> advice{
    {{"AccessDenied",
      "check the identity (`aws sts get-caller-identity`) and that it has s3:GetObject there; without s3:ListBucket "
      "a missing key has this answer, too"},
     {"InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID, AWS_PROFILE and the endpoint"},
     {"SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY"},
     {"ExpiredToken", "get new credentials"},
     {"InvalidToken", "check AWS_SESSION_TOKEN"},
     {"RequestTimeTooSkewed", "set this machine's clock"}}};

}  // namespace

std::optional<std::string_view> next_element(std::string_view& xml, std::string_view name) noexcept
{
    auto const open = find_tag(xml, "<", name, 0);
    if (open == std::string_view::npos)
        return std::nullopt;
    auto const begin = open + name.size() + 2;
    auto const end = find_tag(xml, "</", name, begin);
    if (end == std::string_view::npos)
        return std::nullopt;
    auto const content = xml.substr(begin, end - begin);
    xml.remove_prefix(end + name.size() + 3);
    return content;
}

std::optional<std::string_view> element(std::string_view xml, std::string_view name) noexcept
{
    return next_element(xml, name);
}

std::string unescaped(std::string_view text)
{
    std::string result;
    while (!text.empty()) {
        auto const* const found = std::ranges::find_if(
            entities, [&](auto const& each) { return text.front() == '&' && text.starts_with(each.first); });
        auto const known = found != entities.end();
        result += known ? found->second : text.front();
        text.remove_prefix(known ? found->first.size() : 1);
    }
    return result;
}

std::string text_of(std::string_view xml, std::string_view name)
{
    return unescaped(element(xml, name).value_or(std::string_view{}));
}

std::optional<listing_page> parse_listing(std::string_view xml, std::string_view bucket, std::string& why)
{
    auto const is_one = xml.find("<ListBucketResult") != std::string_view::npos && xml.ends_with("</ListBucketResult>");
    auto const truncated = text_of(xml, "IsTruncated");
    if (!is_one || (truncated != "true" && truncated != "false")) {
        why = "its answer is not a page of ListObjectsV2";
        return std::nullopt;
    }
    listing_page page{.objects = {}, .next = text_of(xml, "NextContinuationToken")};
    // Without it keys would have to be XML, in which not all can be written.
    if (element(xml, "Contents") && text_of(xml, "EncodingType") != "url") {
        why = "it did not encode the keys as requested (encoding-type=url)";
        return std::nullopt;
    }
    while (auto const contents = next_element(xml, "Contents")) {
        auto object = object_in(*contents, bucket);
        if (!object) {
            why = fmt::format("its answer has an object without key or size: {}", contents->substr(0, 200));
            return std::nullopt;
        }
        page.objects.push_back(std::move(*object));
    }
    if ((truncated == "true") == page.next.empty()) {
        why = "its answer lacks a continuation token, or has one although nothing follows";
        return std::nullopt;
    }
    return page;
}

std::optional<refusal> parse_refusal(std::string_view body)
{
    auto const begin = body.find("<Error>");
    auto const code = text_of(body, "Code");
    if (begin == std::string_view::npos || code.empty())
        return std::nullopt;
    return refusal{.code = code,
                   .message = text_of(body, "Message"),
                   .region = text_of(body, "Region"),
                   .request_time = text_of(body, "RequestTime"),
                   .server_time = text_of(body, "ServerTime")};
}

std::string words_of(refusal const& said)
{
    auto words = said.message.empty() ? said.code : fmt::format("{}: {}", said.code, said.message);
    if (!said.server_time.empty())
        words += fmt::format(" The time is {} here, {} there", said.request_time, said.server_time);
    for (auto const& [code, what] : advice) {
        if (code == said.code)
            words += fmt::format("; {}", what);
    }
    return words;
}

bool is_about_expiry(refusal const& said) noexcept
{
    return said.code == "ExpiredToken";
}

}  // namespace gpurx::ingest::detail::s3
