// SPDX-License-Identifier: Apache-2.0
#include "request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/string/find.hpp>
#include <gpurx/ingest/error.hpp>

#include "../s3/response.hpp"

namespace gpurx::ingest::detail {

namespace {

// S3's field that asks for checksums.
constexpr std::string_view checksum_mode = "x-amz-checksum-mode";
// A proxy that drops the field makes the signature wrong.
constexpr std::array<std::string_view, 4> refusals_of_fields{"InvalidArgument", "InvalidRequest", "NotImplemented",
                                                             "SignatureDoesNotMatch"};

std::string text_of(byte_range range)
{
    return fmt::format("bytes {} to {}", range.begin, range.end - 1);
}

// The bytes that follow a 200 or a 206.
byte_range bytes_of(answer const& head, error_code& code, std::string& why)
{
    code = errc::unknown_size;
    if (!head.transfer_encoding.empty()) {
        why = "it answers with Transfer-Encoding: " + head.transfer_encoding;
        return {};
    }
    if (!head.content_encoding.empty()) {
        why = "it answers with Content-Encoding: " + head.content_encoding;
        return {};
    }
    if (!head.length) {
        why = "its answer has no Content-Length";
        return {};
    }
    byte_range bytes{0, *head.length};
    if (head.status == 206 && head.range)
        bytes = *head.range;
    if (head.status == 206 && (!head.range || !head.total || bytes.size() != *head.length)) {
        code = errc::bad_response;
        why = "status 206 needs a Content-Range with range and size, and a Content-Length that agrees";
        return {};
    }
    code.clear();
    return bytes;
}

bool is_another(std::string const& before, std::string const& now)
{
    return !before.empty() && !now.empty() && before != now;
}

// Words for what differs; empty: nothing.
std::string what_changed(object_identity const& before, answer const& head, std::uint64_t size)
{
    if (is_another(before.etag, head.etag))
        return fmt::format("its ETag was {}, and is {}", before.etag, head.etag);
    if (before.etag.empty() && is_another(before.last_modified, head.last_modified))
        return fmt::format("it was last modified {}, and now {}", before.last_modified, head.last_modified);
    if (before.size != size)
        return fmt::format("its size was {}, and is {}", before.size, size);
    return {};
}

bool begins_as_asked(byte_range bytes, byte_range asked)
{
    return bytes.begin == asked.begin && bytes.end <= asked.end && !bytes.empty();
}

// A page for browsers. Whatever else a server says is for the program's user.
bool is_page(std::string_view body)
{
    std::string_view const begin = body.substr(0, 256);
    return !boost::ifind_first(begin, "<html").empty() || !boost::ifind_first(begin, "<!doctype html").empty();
}

std::string_view advice_for(unsigned status)
{
    switch (status) {
        case 401:
        case 403:
            return "; check the token, user and password, or certificate";
        case 404:
        case 410:
            return "; check the path of the URL: the server has nothing there";
        default:
            return {};
    }
}

}  // namespace

header_fields get_fields(url const& from, byte_range range, bool wants_checksum)
{
    header_fields fields{{"Host", from.authority}, {"User-Agent", "gpurx"}, {"Accept-Encoding", "identity"}};
    if (!range.empty())
        fields.push_back({"Range", fmt::format("bytes={}-{}", range.begin, range.end - 1)});
    if (from.signs(checksum_mode) || (wants_checksum && !from.is_signed()))
        fields.push_back({std::string{checksum_mode}, "ENABLED"});
    return fields;
}

std::string get_request(url const& from, byte_range range, bool wants_checksum, header_fields const& more)
{
    return request_text("GET", from.target, get_fields(from, range, wants_checksum), more);
}

std::string head_request(url const& from, bool wants_checksum, header_fields const& more)
{
    return request_text("HEAD", from.target, get_fields(from, {}, wants_checksum), more);
}

bool may_refuse_checksum_mode(answer const& head, std::string_view body)
{
    if (head.status != 400 && head.status != 403 && head.status != 501)
        return false;
    auto const said = s3::parse_refusal(body);
    // Without S3's text 403 is about who asks.
    return said ? std::ranges::find(refusals_of_fields, said->code) != refusals_of_fields.end() : head.status != 403;
}

first_answer understand_first(answer const& head, byte_range asked, error_code& code, std::string& why)
{
    first_answer found{.object = {.size = 0, .etag = head.etag, .last_modified = head.last_modified},
                       .follows = {},
                       .serves_ranges = head.status == 206};
    code.clear();
    // No range of an empty object can be served, and one from the beginning of any other can.
    if (head.status == 416 && head.total == 0U)
        return found;
    if (head.status != 200 && head.status != 206) {
        code = errc::http_status;
        why = status_text(head);
        return {};
    }
    found.follows = bytes_of(head, code, why);
    if (code)
        return {};
    found.object.size = head.status == 206 ? *head.total : found.follows.size();
    if (head.status == 206 && !begins_as_asked(found.follows, asked)) {
        code = errc::wrong_range;
        why = fmt::format("{} were requested, and it sends {}", text_of(asked), text_of(found.follows));
        return {};
    }
    return found;
}

std::string what_differs(opened_object const& one, opened_object const& other)
{
    if (one.object.size != other.object.size)
        return fmt::format("it has {} bytes there, and {} here", other.object.size, one.object.size);
    if (one.serves_ranges && !other.serves_ranges)
        return "its server serves no ranges, and this one does";
    if (one.crc32c && other.crc32c)
        return one.crc32c == other.crc32c
                   ? std::string{}
                   : fmt::format("its CRC32C is {:08x} there, and {:08x} here", *other.crc32c, *one.crc32c);
    if (one.crc64nvme && other.crc64nvme)
        return one.crc64nvme == other.crc64nvme ? std::string{}
                                                : fmt::format("its CRC-64/NVME is {:016x} there, and {:016x} here",
                                                              *other.crc64nvme, *one.crc64nvme);
    auto const& tag = one.object.etag;
    if (tag.empty() || tag.starts_with("W/") || tag != other.object.etag)
        return fmt::format("its ETag is {} there, and {} here, and the two have no checksum in common",
                           other.object.etag.empty() ? "none" : other.object.etag, tag.empty() ? "none" : tag);
    return {};
}

byte_range understand(answer const& head, byte_range asked, object_identity const& object, error_code& code,
                      std::string& why)
{
    auto const found = understand_first(head, asked, code, why);
    // 416 and 412 come where the object has become shorter, or another.
    auto const size = head.total ? *head.total : found.object.size;
    auto changed = code && !head.total ? std::string{} : what_changed(object, head, size);
    if (changed.empty())
        return found.follows;
    code = errc::object_changed;
    why = std::move(changed);
    return {};
}

std::string refusal_text(answer const& head, std::string_view body, std::string_view advice, s3::store of)
{
    auto const said = s3::parse_refusal(body, head.error_code);
    auto words = status_text(head);
    if (said)
        return words + ": " + s3::words_of(*said, of);
    if (!body.empty() && !is_page(body))
        words += fmt::format(": {}", body);
    return words.append(advice.empty() ? advice_for(head.status) : advice);
}

}  // namespace gpurx::ingest::detail
