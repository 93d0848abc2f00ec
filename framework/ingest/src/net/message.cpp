// SPDX-License-Identifier: Apache-2.0
#include "message.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/string/trim.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>
#include <chrono>
#include <gpurx/ingest/error.hpp>
#include <utility>

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

// Behind a dash the ETag has the number of parts of an upload.
bool was_uploaded_in_parts(std::string_view etag)
{
    if (etag.ends_with('"'))
        etag.remove_suffix(1);
    auto const dash = etag.rfind('-');
    return dash != std::string_view::npos && dash + 1 < etag.size() &&
           etag.find_first_not_of("0123456789", dash + 1) == std::string_view::npos;
}

// The checksum is the whole object's where it says so, or where all of the object was asked for. One of the checksums
// of an upload's parts is none of bytes: some stores do not say so.
bool has_whole_crc(http::response_header<> const& header, answer const& found)
{
    if (auto const type = header["x-amz-checksum-type"]; !type.empty())
        return type == "FULL_OBJECT";
    auto const is_all = found.status == 200 ||
                        (found.range && found.total && found.range->begin == 0 && found.range->end == *found.total);
    return is_all && !was_uploaded_in_parts(found.etag);
}

// Digits of six bits each, `padding` behind them; what is left over of the last is zero.
template <class Number>
std::optional<Number> parse_base64(std::string_view field, std::string_view padding) noexcept
{
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    constexpr unsigned bits = 8 * sizeof(Number);
    constexpr unsigned whole = bits / 6;
    constexpr unsigned over = 6 - bits % 6;
    if (field.size() != whole + 1 + padding.size() || !field.ends_with(padding))
        return std::nullopt;
    Number number = 0;
    for (unsigned i = 0; i <= whole; ++i) {
        auto const value = digits.find(field[i]);
        if (value == std::string_view::npos || (i == whole && value % (1U << over) != 0))
            return std::nullopt;
        number = i < whole ? static_cast<Number>(number << 6 | value)
                           : static_cast<Number>(number << (6 - over) | value >> over);
    }
    return number;
}

// Empty: none, which "identity" says too.
std::string encoding_in(boost::beast::string_view field)
{
    return boost::beast::iequals(field, "identity") ? std::string{} : text_of(field);
}

// Google's, of the whole object with any range: crc32c=…,md5=…, or a field for each. Of an object that is stored
// compressed, it is that of the compressed bytes.
std::optional<std::uint32_t> google_crc(http::response_header<> const& header)
{
    constexpr std::string_view name = "crc32c=";
    if (!encoding_in(header["x-goog-stored-content-encoding"]).empty())
        return std::nullopt;
    auto const [begin, end] = header.equal_range("x-goog-hash");
    for (auto field = begin; field != end; ++field) {
        auto rest = text_of(field->value()) + ",";
        for (auto comma = rest.find(','); comma != std::string::npos; comma = rest.find(',')) {
            auto const each = boost::algorithm::trim_copy(rest.substr(0, comma));
            if (each.starts_with(name))
                return parse_base64_crc(std::string_view{each}.substr(name.size()));
            rest.erase(0, comma + 1);
        }
    }
    return std::nullopt;
}

// The bytes of an upload in signed chunks are stored without them. Some gateways keep the name.
std::string content_encoding_in(http::response_header<> const& header)
{
    std::string all;
    auto const [begin, end] = header.equal_range(http::field::content_encoding);
    for (auto field = begin; field != end; ++field) {
        auto rest = text_of(field->value()) + ",";
        for (auto comma = rest.find(','); comma != std::string::npos; comma = rest.find(',')) {
            auto const each = boost::algorithm::trim_copy(rest.substr(0, comma));
            if (!boost::beast::iequals(each, "aws-chunked") && !encoding_in(each).empty())
                all.append(all.empty() ? "" : ", ").append(each);
            rest.erase(0, comma + 1);
        }
    }
    return all;
}

bool take_fields(http::response_header<> const& header, answer& found, std::string& why)
{
    found.status = header.result_int();
    found.reason = text_of(header.reason());
    found.etag = text_of(header[http::field::etag]);
    found.last_modified = text_of(header[http::field::last_modified]);
    found.location = text_of(header[http::field::location]);
    found.commit = text_of(header["X-Repo-Commit"]);
    found.bucket_region = text_of(header["x-amz-bucket-region"]);
    found.error_code = text_of(header["x-ms-error-code"]);
    found.content_encoding = content_encoding_in(header);
    found.transfer_encoding = encoding_in(header[http::field::transfer_encoding]);
    found.retry_after = parse_retry_after(text_of(header[http::field::retry_after]), text_of(header[http::field::date]),
                                          std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()));
    if (!found.retry_after)
        found.retry_after = parse_rate_limit(text_of(header["RateLimit"]));
    auto const [begin, end] = header.equal_range(http::field::content_range);
    for (auto each = begin; each != end; ++each) {
        if (each->value() == begin->value() && parse_content_range(text_of(each->value()), found.range, found.total))
            continue;
        why = "Content-Range is \"" + text_of(begin->value()) + "\"";
        if (each != begin)
            why += ", and \"" + text_of(each->value()) + "\"";
        return false;
    }
    if (has_whole_crc(header, found)) {
        found.crc32c = parse_base64_crc(text_of(header["x-amz-checksum-crc32c"]));
        found.crc64nvme = parse_base64_crc64(text_of(header["x-amz-checksum-crc64nvme"]));
    }
    if (!found.crc32c)
        found.crc32c = google_crc(header);
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

using namespace std::chrono;

// Digits only, all of them; -1: it is no number.
int number_in(std::string_view text) noexcept
{
    int value = -1;
    auto const* const end = text.data() + text.size();
    auto const [stopped, error] = std::from_chars(text.data(), end, value);
    return error == std::errc{} && stopped == end ? value : -1;
}

// A quota of the field RateLimit. What it does not state is below 0.
struct quota {
    int remaining = -1;
    int wait = -1;

    [[nodiscard]] std::optional<seconds> used_up_for() const noexcept
    {
        return remaining <= 0 && wait >= 0 ? std::optional{seconds{wait}} : std::nullopt;
    }
};

// A name in quotes may contain what separates others.
std::size_t end_of_item(std::string_view text) noexcept
{
    bool is_quoted = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '"')
            is_quoted = !is_quoted;
        else if (!is_quoted && (text[i] == ',' || text[i] == ';'))
            return i;
    }
    return text.size();
}

}  // namespace

std::string request_text(std::string_view method, std::string_view target, header_fields const& fields,
                         header_fields const& more)
{
    auto text = fmt::format("{} {} HTTP/1.1\r\n", method, target);
    auto const is_given = [&more](header_field const& own) {
        return std::ranges::any_of(
            more, [&own](header_field const& each) { return boost::beast::iequals(each.name, own.name); });
    };
    for (auto const& each : fields)
        text += is_given(each) ? std::string{} : fmt::format("{}: {}\r\n", each.name, each.value);
    for (auto const& each : more)
        text += fmt::format("{}: {}\r\n", each.name, each.value);
    return text + "\r\n";
}

struct answer_reader::parser : http::response_parser<http::string_body> {
    parser() { header_limit(detail::header_limit); }
};

answer_reader::answer_reader() : parser_{std::make_unique<parser>()}
{
    parser_->body_limit(boost::none);
    parser_->skip(true);
}

answer_reader::answer_reader(std::size_t body_limit) : parser_{std::make_unique<parser>()}
{
    parser_->body_limit(body_limit);
    parser_->eager(true);
}

answer_reader::~answer_reader() = default;

bool answer_reader::is_done() const noexcept
{
    return parser_->is_done();
}

std::size_t answer_reader::put(asio::const_buffer bytes, error_code& code)
{
    return parser_->put(bytes, code);
}

// Before the header is done Beast expects none.
void answer_reader::put_end(error_code& code)
{
    if (parser_->is_header_done())
        parser_->put_eof(code);
}

answer answer_reader::take(error_code& code, std::string& why) const
{
    code = translate(code, why);
    if (code)
        return {};
    answer found;
    if (!take_fields(parser_->get().base(), found, why)) {
        code = errc::bad_response;
        return {};
    }
    if (auto const length = parser_->content_length())
        found.length = *length;
    found.chunked = parser_->chunked();
    found.keep_alive = parser_->keep_alive();
    return found;
}

std::string answer_reader::take_body()
{
    return std::move(parser_->get().body());
}

answer parse_answer(std::string_view header, error_code& code, std::string& why)
{
    answer_reader reader;
    static_cast<void>(reader.put(asio::buffer(header.data(), header.size()), code));
    return reader.take(code, why);
}

std::string status_text(answer const& head)
{
    return fmt::format("it answers {} {}", head.status, head.reason);
}

bool parse_content_range(std::string_view field, std::optional<byte_range>& range,
                         std::optional<std::uint64_t>& total) noexcept
{
    constexpr std::string_view unit = "bytes ";
    auto const has_unit =
        field.size() > unit.size() && boost::beast::iequals({field.data(), unit.size()}, {unit.data(), unit.size()});
    range.reset();
    total.reset();
    auto const slash = field.find('/');
    if (!has_unit || slash == std::string_view::npos)
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
    return parse_base64<std::uint32_t>(field, "==");
}

std::optional<std::uint64_t> parse_base64_crc64(std::string_view field) noexcept
{
    return parse_base64<std::uint64_t>(field, "=");
}

std::optional<sys_seconds> parse_http_date(std::string_view field) noexcept
{
    constexpr std::array<std::string_view, 12> months{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    constexpr std::string_view shape = "Sun, 06 Nov 1994 08:49:37 GMT";
    if (field.size() != shape.size() || field.substr(3, 2) != ", " || !field.ends_with(" GMT") || field[19] != ':' ||
        field[22] != ':')
        return std::nullopt;
    auto const* const named = std::ranges::find(months, field.substr(8, 3));
    if (named == months.end())
        return std::nullopt;
    auto const h = number_in(field.substr(17, 2));
    auto const m = number_in(field.substr(20, 2));
    auto const s = number_in(field.substr(23, 2));
    auto const d = number_in(field.substr(5, 2));
    auto const y = number_in(field.substr(12, 4));
    if (h < 0 || h > 23 || m < 0 || m > 59 || s < 0 || s > 60 || d < 0 || y < 1970)
        return std::nullopt;
    year_month_day const day{year{y}, month{static_cast<unsigned>(named - months.begin()) + 1},
                             std::chrono::day{static_cast<unsigned>(d)}};
    if (!day.ok())
        return std::nullopt;
    return sys_days{day} + hours{h} + minutes{m} + seconds{s};
}

std::optional<seconds> parse_retry_after(std::string_view field, std::string_view date, sys_seconds now) noexcept
{
    if (auto const wait = number_in(field); wait >= 0)
        return seconds{wait};
    auto const until = parse_http_date(field);
    if (!until)
        return std::nullopt;
    return std::max(*until - parse_http_date(date).value_or(now), seconds{0});
}

std::optional<seconds> parse_rate_limit(std::string_view field) noexcept
{
    std::optional<seconds> longest;
    quota each;
    while (!field.empty()) {
        auto const end = end_of_item(field);
        auto item = field.substr(0, end);
        field.remove_prefix(std::min(end + 1, field.size()));
        item.remove_prefix(std::min(item.find_first_not_of(' '), item.size()));
        auto const equals = item.starts_with('"') ? std::string_view::npos : item.find('=');
        auto const name = item.substr(0, equals);
        auto const value = equals == std::string_view::npos ? -1 : number_in(item.substr(equals + 1));
        if (name == "r" || name == "remaining")
            each.remaining = value;
        else if (name == "t" || name == "reset")
            each.wait = value;
        else if (equals == std::string_view::npos)  // the name of the next quota
            longest = std::max(longest, std::exchange(each, {}).used_up_for());
    }
    return std::max(longest, each.used_up_for());
}

}  // namespace gpurx::ingest::detail
