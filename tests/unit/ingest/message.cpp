// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>
#include <gpurx/ingest/error.hpp>
#include <string>

#include "http/request.hpp"
#include "net/message.hpp"

namespace gpurx::ingest::detail {

namespace {

answer parsed(std::string const& lines)
{
    error_code code;
    std::string why;
    auto result = parse_answer(lines + "\r\n", code, why);
    INFO(why);
    REQUIRE_FALSE(code);
    return result;
}

bool is_refused(std::string const& text)
{
    error_code code;
    std::string why;
    static_cast<void>(parse_answer(text, code, why));
    return code == errc::bad_response && !why.empty();
}

}  // namespace

TEST_CASE("the parser finds a header's fields for a download")
{
    auto const found = parsed(
        "HTTP/1.1 206 Partial Content\r\nServer: x\r\nETag: \"abc\"\r\nLast-Modified: Sat, 21 Nov 2026 10:00:00 "
        "GMT\r\nContent-Length: 100\r\ncontent-range: bytes 200-299/1000\r\nConnection: close\r\n");
    CHECK(found.status == 206);
    CHECK(found.reason == "Partial Content");
    CHECK(found.length == 100);
    CHECK_FALSE(found.chunked);
    CHECK_FALSE(found.keep_alive);
    CHECK(found.range == byte_range{200, 300});
    CHECK(found.total == 1000);
    CHECK(found.etag == "\"abc\"");
    CHECK(found.last_modified == "Sat, 21 Nov 2026 10:00:00 GMT");
    CHECK(found.content_encoding.empty());

    CHECK(parsed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n").chunked);
    CHECK(parsed("HTTP/1.1 200 OK\r\n").keep_alive);
    CHECK_FALSE(parsed("HTTP/1.0 200 OK\r\n").keep_alive);
    CHECK(parsed("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n").content_encoding == "gzip");
    CHECK(parsed("HTTP/1.1 200 OK\r\nContent-Encoding: Identity\r\n").content_encoding.empty());
    for (auto const* const none : {"aws-chunked", "AWS-Chunked, identity", " aws-chunked ,", ""})
        CHECK(parsed(fmt::format("HTTP/1.1 200 OK\r\nContent-Encoding: {}\r\n", none)).content_encoding.empty());
    for (auto const* const gzip : {"aws-chunked,gzip", "gzip, aws-chunked", "aws-chunked\r\nContent-Encoding: gzip"})
        CHECK(parsed(fmt::format("HTTP/1.1 200 OK\r\nContent-Encoding: {}\r\n", gzip)).content_encoding == "gzip");
    for (auto const* const other : {"gzip, br", "\"gzip\"", "aws-chunked gzip", "br;q=1"})
        CHECK(parsed(fmt::format("HTTP/1.1 200 OK\r\nContent-Encoding: {}\r\n", other)).content_encoding == other);
    CHECK(parsed("HTTP/1.1 200 OK\r\nTransfer-Encoding: aws-chunked\r\n").transfer_encoding == "aws-chunked");
    CHECK(parsed("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n").transfer_encoding == "gzip");
    CHECK(parsed("HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n").transfer_encoding.empty());
    CHECK(parsed("HTTP/1.1 503 Slow\r\nRetry-After: 7\r\n").retry_after == std::chrono::seconds{7});
    auto const limited = parsed("HTTP/1.1 429 Slow\r\nRateLimit: \"api\";r=0;t=100\r\n");
    CHECK(limited.is_temporary());
    CHECK(limited.retry_after == std::chrono::seconds{100});
    CHECK(parsed("HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nRateLimit: \"api\";r=0;t=100\r\n").retry_after ==
          std::chrono::seconds{7});
    for (auto const status : {408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
        CHECK(parsed(fmt::format("HTTP/1.1 {} X\r\n", status)).is_temporary());
    for (auto const status : {200, 301, 400, 403, 404, 501, 505, 511, 519, 525, 526, 528, 530})
        CHECK_FALSE(parsed(fmt::format("HTTP/1.1 {} X\r\n", status)).is_temporary());
    std::string const range = "Content-Range: bytes 0-0/1\r\n";
    CHECK(parsed("HTTP/1.1 206 P\r\n" + range + range).total == 1);
    CHECK(parsed("HTTP/1.1 302 Found\r\nLocation: /x\r\n").location == "/x");
}

TEST_CASE("an invalid header of HTTP/1 is refused")
{
    CHECK(is_refused(""));
    CHECK(is_refused("\r\n\r\n"));
    // To pass over an empty line is what RFC 9112, 2.2 asks of servers, not of clients.
    CHECK(is_refused("\r\nHTTP/1.1 200 OK\r\n\r\n"));
    CHECK(is_refused("\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"));
    CHECK(is_refused("GET / HTTP/1.1\r\n\r\n"));
    CHECK(is_refused("HTTP/2 200\r\n\r\n"));
    CHECK(is_refused("HTTP/1.1 200 OK\r\n"));
    CHECK(is_refused("HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n\r\n"));
    CHECK(is_refused("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n"));
    CHECK(is_refused("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"));
    CHECK(is_refused("HTTP/1.1 206 OK\r\nContent-Range: bytes 9-0/10\r\n\r\n"));
    CHECK(is_refused("HTTP/1.1 206 OK\r\nContent-Range: bytes 0-9/10\r\nContent-Range: bytes 0-9/11\r\n\r\n"));
}

TEST_CASE("a Content-Range is a range, a size, or both")
{
    std::optional<byte_range> range;
    std::optional<std::uint64_t> total;
    auto const parse = [&](std::string_view field) { return parse_content_range(field, range, total); };
    REQUIRE(parse("bytes 0-0/1"));
    CHECK(range == byte_range{0, 1});
    CHECK(total == 1);
    REQUIRE(parse("bytes 5-9/*"));
    CHECK(range == byte_range{5, 10});
    CHECK_FALSE(total);
    REQUIRE(parse("bytes */77"));
    CHECK_FALSE(range);
    CHECK(total == 77);
    CHECK(parse("Bytes 0-0/1"));
    REQUIRE(parse("bytes 0-18446744073709551613/18446744073709551614"));
    for (auto const* const wrong :
         {"", "bytes", "bytes ", "bytes 0-0", "bytes /", "bytes 0/1", "bytes -1/1", "bytes 0-/1", "bytes 0-1/1",
          "bytes 2-1/9", "bytes 0-0/", "bytes 0-0/+1", "bytes 0-0/ 1", "items 0-0/1", "bytes 0-0x/1",
          "bytes 0-18446744073709551616/*", "bytes 0-18446744073709551615/*"}) {
        INFO(wrong);
        CHECK_FALSE(parse(wrong));
    }
}

TEST_CASE("S3's CRC32C is four bytes in base64, and counts where it is the whole object's")
{
    CHECK(parse_base64_crc("4waSgw==") == 0xe3069283);
    CHECK(parse_base64_crc("AAAAAA==") == 0);
    CHECK(parse_base64_crc("/////w==") == 0xffffffff);
    for (auto const* const wrong :
         {"", "4waSgw=", "4waSgw", "4waSgw==-3", "4waSg===", "4wa\nw==", "4waSgx==", "========"})
        CHECK_FALSE(parse_base64_crc(wrong));

    std::string const field = "x-amz-checksum-crc32c: 4waSgw==\r\n";
    CHECK(parsed("HTTP/1.1 200 OK\r\n" + field).crc32c == 0xe3069283);
    std::string const part = "HTTP/1.1 206 P\r\nContent-Range: bytes 0-9/20\r\n" + field;
    CHECK_FALSE(parsed(part).crc32c);
    CHECK(parsed(part + "x-amz-checksum-type: FULL_OBJECT\r\n").crc32c);
    CHECK_FALSE(parsed(part + "x-amz-checksum-type: COMPOSITE\r\n").crc32c);
    // A store that does not say of what its checksum is.
    std::string const all = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nx-amz-checksum-crc32c: 9xcMWA==\r\n";
    CHECK(parsed(all + "ETag: \"2c39-x3\"\r\n").crc32c);
    CHECK_FALSE(parsed(all + "ETag: \"2c39f300-3\"\r\n").crc32c);
    CHECK(parsed(all + "ETag: \"2c39f300-3\"\r\nx-amz-checksum-type: FULL_OBJECT\r\n").crc32c);
    CHECK(parsed("HTTP/1.1 206 P\r\nContent-Range: bytes 0-19/20\r\n" + field).crc32c);
}

TEST_CASE("Google's CRC32C counts with any range, unless the object is stored compressed")
{
    std::string const part = "HTTP/1.1 206 P\r\nContent-Range: bytes 0-8/20\r\n";
    for (auto const* const field : {"x-goog-hash: crc32c=4waSgw==,md5=AAAAAAAAAAAAAAAAAAAAAA==\r\n",
                                    "X-Goog-Hash: md5=crc32c=, crc32c=4waSgw==\r\n",
                                    "x-goog-hash: md5=AA==\r\nx-goog-hash: crc32c=4waSgw==\r\n"}) {
        CHECK(parsed(part + field).crc32c == 0xe3069283);
        CHECK(parsed(part + field + "x-goog-stored-content-encoding: identity\r\n").crc32c == 0xe3069283);
        CHECK_FALSE(parsed(part + field + "x-goog-stored-content-encoding: gzip\r\n").crc32c);
    }
    for (auto const* const none : {"", "x-goog-hash: \r\n", "x-goog-hash: md5=AA==\r\n",
                                   "x-goog-hash: crc32c=4waSgw\r\n", "x-goog-hash: xcrc32c=4waSgw==\r\n"})
        CHECK_FALSE(parsed(part + none).crc32c);
}

TEST_CASE("S3's CRC-64/NVME is eight bytes in base64")
{
    CHECK(parse_base64_crc64("rosUhgp5mIg=") == 0xae8b14860a799888);
    CHECK(parse_base64_crc64("AAAAAAAAAAA=") == 0);
    CHECK(parse_base64_crc64("//////////8=") == UINT64_MAX);
    for (auto const* const wrong : {"", "rosUhgp5mIg", "rosUhgp5mIg==", "rosUhgp5mIh=", "rosUhgp5mIg=-2",
                                    "rosUhgp5m g=", "4waSgw==", "============"})
        CHECK_FALSE(parse_base64_crc64(wrong));
    std::string const field = "x-amz-checksum-crc64nvme: rosUhgp5mIg=\r\n";
    CHECK(parsed("HTTP/1.1 200 OK\r\n" + field).crc64nvme == 0xae8b14860a799888);
    CHECK_FALSE(parsed("HTTP/1.1 206 P\r\nContent-Range: bytes 0-9/20\r\n" + field).crc64nvme);
}

TEST_CASE("a request has the fields that a server needs, and none that a signature forbids")
{
    error_code code;
    diagnostics why;
    auto const from = parse_url("http://h:81/a?b", code, why);
    auto const text = get_request(from, {100, 200}, true);
    CHECK(text.starts_with("GET /a?b HTTP/1.1\r\nHost: h:81\r\n"));
    CHECK(text.find("Range: bytes=100-199\r\n") != std::string::npos);
    CHECK(text.find("x-amz-checksum-mode: ENABLED\r\n") != std::string::npos);
    CHECK(text.ends_with("\r\n\r\n"));
    CHECK(get_request(from, {}, true).find("Range") == std::string::npos);
    CHECK(get_request(from, {0, 1}, false).find("x-amz") == std::string::npos);
    auto const signed_url = parse_url("http://h/a?X-Amz-Signature=1", code, why);
    CHECK(get_request(signed_url, {0, 1}, true).find("x-amz") == std::string::npos);
    auto const covers =
        parse_url("http://h/a?X-Amz-SignedHeaders=host%3Bx-amz-checksum-mode&X-Amz-Signature=1", code, why);
    CHECK(get_request(covers, {0, 1}, false).find("x-amz-checksum-mode: ENABLED\r\n") != std::string::npos);
}

}  // namespace gpurx::ingest::detail
