// SPDX-License-Identifier: Apache-2.0
#include "answer.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <charconv>
#include <gpurx/ingest/error.hpp>

namespace gpurx::ingest::detail {

namespace {

namespace http = boost::beast::http;

// Digits only, all of them.
std::optional<std::uint64_t> parse_number(std::string_view text) noexcept
{
    std::uint64_t value = 0;
    auto const* const end = text.data() + text.size();
    auto const [stopped, error] = std::from_chars(text.data(), end, value);
    if (text.empty() || stopped != end || error != std::errc{})
        return std::nullopt;
    return value;
}

std::string text_of(boost::beast::string_view field)
{
    return {field.data(), field.size()};
}

// The checksum is the whole object's where it says so, or where all of the object was asked for. Made of the checksums
// of an upload's parts it has their number behind a dash, and is none of bytes.
std::optional<std::uint32_t> whole_crc(http::response_header<> const& header, answer const& found)
{
    auto const whole = header["x-amz-checksum-type"] == "FULL_OBJECT" || found.status == 200 ||
                       (found.range && found.total && found.range->begin == 0 && found.range->end == *found.total);
    return whole ? parse_base64_crc(text_of(header["x-amz-checksum-crc32c"])) : std::nullopt;
}

bool take_fields(http::response_header<> const& header, answer& found, std::string& why)
{
    found.status = header.result_int();
    found.reason = text_of(header.reason());
    found.etag = text_of(header[http::field::etag]);
    found.last_modified = text_of(header[http::field::last_modified]);
    found.location = text_of(header[http::field::location]);
    found.content_encoding = text_of(header[http::field::content_encoding]);
    if (found.content_encoding == "identity")
        found.content_encoding.clear();
    auto const range = header.find(http::field::content_range);
    if (range != header.end() && !parse_content_range(text_of(range->value()), found.range, found.total)) {
        why = "Content-Range is \"" + text_of(range->value()) + "\"";
        return false;
    }
    found.crc32c = whole_crc(header, found);
    return true;
}

}  // namespace

answer parse_answer(std::string_view header, error_code& code, std::string& why)
{
    http::response_parser<http::empty_body> parser;
    parser.header_limit(header_limit);
    parser.body_limit(boost::none);
    parser.skip(true);
    answer found;
    boost::system::error_code wrong;
    parser.put(boost::asio::buffer(header.data(), header.size()), wrong);
    code = errc::bad_response;
    if (wrong || !parser.is_header_done()) {
        why = wrong ? wrong.message() : "the header is not whole";
        return {};
    }
    if (!take_fields(parser.get().base(), found, why))
        return {};
    if (auto const length = parser.content_length())
        found.length = *length;
    found.chunked = parser.chunked();
    found.keep_alive = parser.keep_alive();
    code.clear();
    return found;
}

bool parse_content_range(std::string_view field, std::optional<byte_range>& range,
                         std::optional<std::uint64_t>& total) noexcept
{
    constexpr std::string_view unit = "bytes ";
    range.reset();
    total.reset();
    auto const slash = field.find('/');
    if (!field.starts_with(unit) || slash == std::string_view::npos)
        return false;
    auto const bytes = field.substr(unit.size(), slash - unit.size());
    auto const size = field.substr(slash + 1);
    if (size != "*" && !(total = parse_number(size)))
        return false;
    if (bytes == "*")
        return true;
    auto const dash = bytes.find('-');
    if (dash == std::string_view::npos)
        return false;
    auto const first = parse_number(bytes.substr(0, dash));
    auto const last = parse_number(bytes.substr(dash + 1));
    if (!first || !last || *last < *first || *last == UINT64_MAX || (total && *last >= *total))
        return false;
    range = byte_range{*first, *last + 1};
    return true;
}

std::optional<std::uint32_t> parse_base64_crc(std::string_view field) noexcept
{
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    // Six digits of six bits; the last four bits are padding.
    if (field.size() != 8 || !field.ends_with("=="))
        return std::nullopt;
    std::uint64_t bits = 0;
    for (auto const digit : field.substr(0, 6)) {
        auto const value = digits.find(digit);
        if (value == std::string_view::npos)
            return std::nullopt;
        bits = bits << 6 | value;
    }
    if ((bits & 0xf) != 0)
        return std::nullopt;
    return static_cast<std::uint32_t>(bits >> 4);
}

}  // namespace gpurx::ingest::detail
