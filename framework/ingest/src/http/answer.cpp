// SPDX-License-Identifier: Apache-2.0
#include "answer.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/beast/http/error.hpp>
#include <charconv>
#include <gpurx/ingest/error.hpp>

#include "answer_parser.hpp"

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

// Beast's word for how reading a header ended, in ours.
error_code translate(error_code code, std::string& why)
{
    if (code == http::error::end_of_stream || code == http::error::partial_message)
        return asio::error::eof;
    if (code.category() != make_error_code(http::error::end_of_stream).category())
        return code;
    if (code == http::error::header_limit || code == http::error::buffer_overflow)
        why = "its header is longer than 16 KiB";
    else
        why = code.message();
    return errc::bad_response;
}

}  // namespace

answer_parser::answer_parser()
{
    header_limit(detail::header_limit);
    body_limit(boost::none);
    skip(true);
}

answer take_answer(answer_parser const& from, error_code& code, std::string& why)
{
    code = translate(code, why);
    if (code)
        return {};
    answer found;
    if (!take_fields(from.get().base(), found, why)) {
        code = errc::bad_response;
        return {};
    }
    if (auto const length = from.content_length())
        found.length = *length;
    found.chunked = from.chunked();
    found.keep_alive = from.keep_alive();
    return found;
}

answer parse_answer(std::string_view header, error_code& code, std::string& why)
{
    answer_parser parser;
    parser.put(asio::buffer(header.data(), header.size()), code);
    return take_answer(parser, code, why);
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
