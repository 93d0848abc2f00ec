// SPDX-License-Identifier: Apache-2.0
#include "request.hpp"

#include <fmt/format.h>

#include <gpurx/ingest/error.hpp>

namespace gpurx::ingest::detail {

namespace {

std::string text_of(byte_range range)
{
    return fmt::format("bytes {} to {}", range.begin, range.end - 1);
}

// The bytes that follow a 200 or a 206.
byte_range bytes_of(answer const& head, error_code& code, std::string& why)
{
    code = errc::unknown_size;
    if (head.chunked) {
        why = "it answers with Transfer-Encoding: chunked";
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
        why = "a Content-Range with range and size, and a Content-Length that agrees, have to come with status 206";
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

}  // namespace

std::string get_request(url const& from, byte_range range)
{
    auto text = fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: gpurx\r\nAccept-Encoding: identity\r\n",
                            from.target, from.authority);
    if (!range.empty())
        text += fmt::format("Range: bytes={}-{}\r\n", range.begin, range.end - 1);
    // Asks S3 to send checksums.
    if (from.allows("x-amz-checksum-mode"))
        text += "x-amz-checksum-mode: ENABLED\r\n";
    return text + "\r\n";
}

first_answer understand_first(answer const& head, byte_range asked, error_code& code, std::string& why)
{
    first_answer found{.object = {.size = 0, .etag = head.etag, .last_modified = head.last_modified},
                       .follows = {},
                       .serves_ranges = head.status == 206};
    code.clear();
    // No range of an empty object can be served, and one from the beginning of any other can. S3 does not say its size.
    if (head.status == 416 && head.total.value_or(asked.begin) == 0)
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
        why = fmt::format("asked for {}, it sends {}", text_of(asked), text_of(found.follows));
        return {};
    }
    return found;
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

std::string status_text(answer const& head)
{
    return fmt::format("it answers {} {}", head.status, head.reason);
}

}  // namespace gpurx::ingest::detail
