// SPDX-License-Identifier: Apache-2.0
#include "listing.hpp"

#include <fmt/format.h>

#include <charconv>

#include "xml.hpp"

namespace gpurx::ingest::detail::s3 {

namespace {

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

}  // namespace

std::optional<listing_page> parse_listing(std::string_view xml, std::string_view bucket, std::string& why)
{
    auto const is_one = xml.find("<ListBucketResult") != std::string_view::npos && xml.ends_with("</ListBucketResult>");
    auto const truncated = text_of(xml, "IsTruncated");
    if (!is_one || (truncated != "true" && truncated != "false")) {
        why = "its answer is no page of ListObjectsV2";
        return std::nullopt;
    }
    listing_page page{.objects = {}, .next = text_of(xml, "NextContinuationToken")};
    // Without it keys would have to be XML, in which not all can be written.
    if (element(xml, "Contents") && text_of(xml, "EncodingType") != "url") {
        why = "it did not encode the keys as it was asked to (encoding-type=url)";
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
        why = "its answer has no token for what follows, or one although nothing does";
        return std::nullopt;
    }
    return page;
}

}  // namespace gpurx::ingest::detail::s3
