// SPDX-License-Identifier: Apache-2.0
//
// What servers say that is not so, or not allowed, or takes for ever, a row each: the bytes are right or there is an
// error, soon.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/algorithm/string/replace.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http_bed.hpp"

namespace gpurx::test {

namespace {

using Catch::Matchers::ContainsSubstring;
using ingest::errc;
using ingest::fetch_options;

constexpr std::size_t object_size = 50'000;

// One server: how it answers, given the object as it is.
using lie = std::function<void(http_content const&, http_request const&, http_reply&)>;

struct row {
    char const* what;
    lie answers;
    error_code expected = {};           // none: all bytes come
    std::string_view words = {};        // of the error's text
    void (*with)(fetch_options&) = {};  // other options than usual
};

// ---- ways to lie ----

lie with_fields(std::string fields)
{
    return [fields](http_content object, http_request const& request, http_reply& reply) {
        object.fields = fields;
        object.serve(request, reply);
    };
}

// The right answer, with something replaced in its header.
lie replacing(std::string_view from, std::string_view to, unsigned first_request = 0)
{
    return [=](http_content const& object, http_request const& request, http_reply& reply) {
        auto header = object.header(request);
        if (request.number >= first_request)
            boost::replace_all(header, from, to);
        reply.send(header);
        reply.send(object.body(request));
    };
}

lie saying(std::string text)
{
    return [text](http_content const&, http_request const&, http_reply& reply) { reply.send(text); };
}

// So many bytes of an endless text, 20 ms apart: longer than any test waits.
void drip(http_reply& reply, std::string_view piece)
{
    for (unsigned i = 0; i < 75; ++i) {
        reply.send(piece);
        fake_clock::sleep_for(20ms);
    }
}

void one_byte_at_a_time(http_content const& object, http_request const& request, http_reply& reply)
{
    reply.send(object.header(request));
    drip(reply, "x");
}

void header_without_end(http_content const&, http_request const&, http_reply& reply)
{
    reply.send("HTTP/1.1 206 Partial Content\r\nX: ");
    drip(reply, "x");
}

void interim_answers_without_end(http_content const&, http_request const&, http_reply& reply)
{
    drip(reply, "HTTP/1.1 103 Early Hints\r\n\r\n");
}

void ten_bytes_and_silence(http_content const& object, http_request const& request, http_reply& reply)
{
    reply.send(object.header(request));
    reply.send(object.body(request).substr(0, 10));
}

// At most so many bytes of each range.
lie at_most(std::uint64_t bytes)
{
    return [=](http_content const& object, http_request request, http_reply& reply) {
        request.range->second = std::min(request.range->second, request.range->first + bytes - 1);
        object.serve(request, reply);
    };
}

// What comes while it answers is dropped: of each connection only the first request is answered.
void one_request_of_each(http_content const& object, http_request const& request, http_reply& reply)
{
    static thread_local auto answered = unsigned(-1);
    if (answered != request.connection)
        object.serve(request, reply);
    answered = request.connection;
}

void no_range_but_all(http_content const& object, http_request const& request, http_reply& reply)
{
    if (request.range)
        reply.send("HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n");
    else
        object.serve(request, reply);
}

void another_object_later(http_content object, http_request const& request, http_reply& reply)
{
    if (request.number > 0)
        object.bytes += "more";
    object.serve(request, reply);
}

void empty_later(http_content const& object, http_request const& request, http_reply& reply)
{
    if (request.number > 0)
        reply.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    else
        object.serve(request, reply);
}

void range_twice(http_content const& object, http_request const& request, http_reply& reply)
{
    auto header = object.header(request);
    auto const begin = header.find("Content-Range");
    auto const field = header.substr(begin, header.find('\n', begin) + 1 - begin);
    reply.send(header.insert(begin, field));
    reply.send(object.body(request));
}

// Who comes back before is sent away.
lie busy_for_a_second()
{
    using clock = std::chrono::steady_clock;
    return [until = std::make_shared<std::atomic<clock::time_point>>()](
               http_content const& object, http_request const& request, http_reply& reply) {
        if (request.number == 0) {
            *until = clock::now() + 1s;
            reply.send("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n");
        } else if (clock::now() < until->load()) {
            reply.send("HTTP/1.1 403 Too Early\r\nContent-Length: 0\r\n\r\n");
        } else {
            object.serve(request, reply);
        }
    };
}

// Away for longer than the pauses between the first attempts.
lie away_after(unsigned requests, unsigned connections)
{
    return [=](http_content const& object, http_request const& request, http_reply& reply) {
        if (request.number >= requests && request.connection < connections)
            reply.reset();
        else
            object.serve(request, reply);
    };
}

void shifted(http_content const& object, http_request request, http_reply& reply)
{
    if (request.number > 0) {
        ++request.range->first;
        ++request.range->second;
    }
    object.serve(request, reply);
}

void round_in_a_circle(http_content const&, http_request const& request, http_reply& reply)
{
    reply.send(fmt::format("HTTP/1.1 302 Found\r\nLocation: {}x\r\nContent-Length: 0\r\n\r\n", request.target));
}

void a_line_without_end(http_content const&, http_request const&, http_reply& reply)
{
    reply.send("HTTP/1.1 200 " + std::string(20'000, 'x'));
}

void nothing(http_content const&, http_request const&, http_reply&) {}

std::string const range_of_all = "Content-Range: bytes 0-9999/50000\r\n";
std::string const length_of_all = "Content-Length: 10000\r\n\r\n";

std::vector<row> const& rows()
{
    static std::vector<row> const all{
        // ---- odd, but right ----
        {"an encoding that is none", with_fields("Content-Encoding: IDENTITY\r\n")},
        {"a transfer encoding that is none", with_fields("Transfer-Encoding: identity\r\n")},
        {"the unit in capitals", replacing("Content-Range: bytes", "content-range: Bytes")},
        {"one range twice", range_twice},
        {"no ETag", replacing("ETag: \"one\"\r\n", "")},
        {"a bare 416, and all of it without a range", no_range_but_all},
        {"a page less than was asked for, each time", at_most(4'096)},
        {"second requests are dropped", one_request_of_each},
        {"it is busy for a second", busy_for_a_second()},
        {"it is away for some attempts", away_after(2, 4), {}, {}, [](fetch_options& o) { o.attempts = 6; }},

        // ---- slow ----
        {"a byte at a time", one_byte_at_a_time, errc::gave_up,
         "bytes came in 400 ms (timeout): less than 1000 bytes a second (min_speed)"},
        {"a header without end", header_without_end, errc::gave_up, "no answer came within 400 ms (timeout)"},
        {"interim answers without end", interim_answers_without_end, errc::gave_up,
         "no answer came within 400 ms (timeout)"},
        {"ten bytes and silence", ten_bytes_and_silence, errc::gave_up,
         "no byte came for 400 ms (timeout); 3 attempts"},
        {"a byte per answer", at_most(1), errc::gave_up, "it sends 1 bytes of those requested; 3 attempts"},
        {"silence", nothing, errc::gave_up, "no answer came within 400 ms (timeout); 3 attempts"},
        {"a byte at a time, and a deadline", one_byte_at_a_time, errc::gave_up, "the deadline",
         [](fetch_options& o) {
             o.timeout = 10s;
             o.deadline = 300ms;
         }},
        {"busy for an hour", saying("HTTP/1.1 503 Slow Down\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"),
         errc::http_status, "the server requests a retry after 3600 s"},
        {"busy for longer than the deadline",
         saying("HTTP/1.1 503 Slow Down\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n"), errc::http_status,
         "the deadline comes before the next", [](fetch_options& o) { o.deadline = 2s; }},

        // ---- ranges and lengths that contradict ----
        {"two ranges", replacing("ETag", "Content-Range: bytes 0-9999/60000\r\nETag"), errc::bad_response,
         "Content-Range is"},
        {"a range that is none", replacing("bytes 0-9999/", "bytes 9999-0/"), errc::bad_response, "Content-Range is"},
        {"a 206 without a range", saying("HTTP/1.1 206 Partial Content\r\n" + length_of_all), errc::bad_response,
         "Content-Range"},
        {"a range of unknown size", replacing("/50000", "/*"), errc::bad_response, "Content-Range"},
        {"a length beyond the range", replacing("Content-Length: 10000", "Content-Length: 10001"), errc::bad_response,
         "Content-Length"},
        {"a length short of the range", replacing("Content-Length: 10000", "Content-Length: 9999"), errc::bad_response,
         "Content-Length"},
        {"two lengths", replacing("Content-Length: 10000", "Content-Length: 10000\r\nContent-Length: 9999"),
         errc::bad_response, ""},
        {"a negative length", replacing("Content-Length: 10000", "Content-Length: -1"), errc::bad_response, ""},
        {"a length of 2^64", replacing("Content-Length: 10000", "Content-Length: 18446744073709551616"),
         errc::bad_response, ""},
        {"other bytes than asked for", shifted, errc::wrong_range,
         "bytes 20000 to 29999 were requested, and it sends bytes"},
        {"the first bytes, whatever is asked for",
         saying("HTTP/1.1 206 P\r\n" + range_of_all + length_of_all + std::string(10'000, 'x')), errc::wrong_range,
         "bytes 20000 to 29999 were requested, and it sends bytes"},
        {"no answer to any request", saying("HTTP/1.1 416 No\r\nContent-Length: 0\r\n\r\n"), errc::http_status,
         "416 No"},

        // ---- encodings nobody asked for ----
        {"compressed", with_fields("Content-Encoding: gzip\r\n"), errc::unknown_size, "Content-Encoding: gzip"},
        {"compressed on the way", with_fields("Transfer-Encoding: gzip\r\n"), errc::unknown_size,
         "Transfer-Encoding: gzip"},
        {"in chunks", saying("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
         errc::unknown_size, "Transfer-Encoding: chunked"},

        // ---- another object ----
        {"it grows", another_object_later, errc::object_changed, "its size was 50000, and is 50004"},
        {"another ETag later", replacing("\"one\"", "\"two\"", 1), errc::object_changed, "its ETag was"},
        {"it is empty later", empty_later, errc::object_changed, "its size was 50000, and is 0"},

        // ---- no HTTP ----
        {"another protocol", saying("SSH-2.0-OpenSSH_9.2\r\n"), errc::bad_response, ""},
        {"HTTP/2", saying("HTTP/2 200\r\n\r\n"), errc::bad_response, ""},
        {"a line without end", a_line_without_end, errc::bad_response, "longer than 16 KiB"},
        {"nothing but an end", [](auto const&, auto const&, http_reply& reply) { reply.close(); }, errc::gave_up,
         "the connection ended before the answer; 3 attempts"},

        // ---- what is said is shown ----
        {"a reason that a terminal would obey",
         saying("HTTP/1.1 404 \xc2\x9b"
                "31m\x80\r\nContent-Length: 4\r\n\r\n\x1b[2J"),
         errc::http_status, "404 \\xc2\\x9b31m\\x80: \\x1b[2J"},
        {"an ETag likewise", replacing("\"one\"", "\"\xff\"", 1), errc::object_changed, "and is \"\\xff\""},
        {"redirects without end", round_in_a_circle, errc::bad_redirect, "more than 10 redirects"},
        {"a redirect to where secrets would show",
         saying("HTTP/1.1 302 F\r\nLocation: ftp://me:secret@h/?token=secret\r\nContent-Length: 0\r\n\r\n"),
         errc::bad_redirect, "-> ftp://h/?token=..."},
        {"success without an object", saying("HTTP/1.1 204 No Content\r\n\r\n"), errc::http_status, "204 No Content"},
        {"not modified since never", saying("HTTP/1.1 304 Not Modified\r\n\r\n"), errc::http_status, "304"},
    };
    return all;
}

}  // namespace

TEST_CASE("for any answer of a server, the bytes are right, or an error with a reason comes soon")
{
    world in{transport::copy, {.max_flows = 5}};  // it is the same on all of them
    for (auto const& each : rows()) {
        INFO(each.what);
        http_content const object{content_of(object_size)};
        http_server server{
            [&](http_request const& request, http_reply& reply) { each.answers(object, request, reply); }};
        fetch_options options{.flows = 2, .chunk_size = 10'000, .timeout = 400ms, .min_speed = 1000, .attempts = 3};
        if (each.with != nullptr)
            each.with(options);
        fake_clock const clock;
        auto const start = std::chrono::steady_clock::now();
        auto const result = fetch(in, server.url("/object?token=secret"), options);
        CHECK(std::chrono::steady_clock::now() - start < 10s);
        CHECK(result.code == each.expected);
        if (each.expected) {
            CHECK_THAT(result.error, ContainsSubstring(std::string{each.words}));
            CHECK_THAT(result.error, ContainsSubstring(server.url("/object")));
            CHECK_THAT(result.error, !ContainsSubstring("secret"));
            CHECK(std::ranges::none_of(result.error, [](char byte) { return static_cast<unsigned char>(byte) < ' '; }));
        } else {
            INFO(result.error);
            CHECK(result.bytes == object.bytes);
        }
    }
}

}  // namespace gpurx::test
