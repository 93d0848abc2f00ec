// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/ingest/error.hpp>
#include <string>

#include "net/url.hpp"

namespace gpurx::ingest::detail {

namespace {

url parsed(std::string_view text)
{
    error_code code;
    diagnostics why;
    auto result = parse_url(text, code, why);
    INFO(text << ": " << describe(code, why));
    REQUIRE_FALSE(code);
    return result;
}

std::string refused(std::string_view text)
{
    error_code code;
    diagnostics why;
    static_cast<void>(parse_url(text, code, why));
    INFO(text);
    CHECK(code == errc::bad_url);
    CHECK(why.object == without_secrets(text));
    return why.advice;
}

std::string followed(std::string_view from, std::string_view location)
{
    error_code code;
    diagnostics why;
    auto const result = follow(parsed(from), location, code, why);
    return code ? "error" : result.text;
}

}  // namespace

TEST_CASE("a URL is split into the parts of a request")
{
    auto const plain = parsed("http://storage/bucket/key");
    CHECK(plain.host == "storage");
    CHECK(plain.port == "80");
    CHECK(plain.authority == "storage");
    CHECK(plain.target == "/bucket/key");
    CHECK(parsed("http://storage").target == "/");
    CHECK(parsed("http://storage?x").target == "/?x");
    CHECK(parsed("http://h/k?token=abc").text == "http://h/k?token=abc");
    CHECK(parsed("http://h/k?token=abc").display == "http://h/k?token=...");

    auto const secure = parsed("https://storage/key");
    CHECK(secure.secure);
    CHECK_FALSE(plain.secure);
    CHECK(secure.port == "443");
    CHECK(secure.authority == "storage");
    CHECK(secure.user.empty());

    auto const with_user = parsed("https://me:se%3Acret@storage/key");
    CHECK(with_user.user == "me:se:cret");
    CHECK(with_user.authority == "storage");
    CHECK(with_user.display == "https://storage/key");

    auto const full = parsed("http://[fd77::2]:9000/a%20b?list-type=2&prefix=%2F#part");
    CHECK(full.host == "fd77::2");
    CHECK(full.port == "9000");
    CHECK(full.authority == "[fd77::2]:9000");
    CHECK(full.target == "/a%20b?list-type=2&prefix=%2F");  // as it was written: it may be signed
}

TEST_CASE("a URL that cannot be used is refused with the reason")
{
    using Catch::Matchers::ContainsSubstring;
    CHECK_THAT(refused("ftp://storage/x"), ContainsSubstring("http:// or https:// or s3://"));
    CHECK_THAT(refused("s3://bucket/key"), ContainsSubstring("http://"));
    CHECK_THAT(refused("storage/x"), ContainsSubstring("http://"));
    CHECK_THAT(refused("http:///x"), ContainsSubstring("no host"));
    CHECK_THAT(refused("http://storage:0/x"), ContainsSubstring("port"));
    CHECK_THAT(refused("http://storage:65536/x"), ContainsSubstring("port"));
    CHECK_THAT(refused("http://storage:/x"), ContainsSubstring("port"));
    CHECK_THAT(refused("http://storage/a b"), ContainsSubstring("%20"));
    CHECK_THAT(refused("http://storage/a\r\nHost: evil"), ContainsSubstring("%20"));
    CHECK_THAT(refused(""), ContainsSubstring("http://"));
}

// What a host is written with is decoded, and stands in requests to proxies and in C strings.
TEST_CASE("a host has letters, digits, and - . _ only, however they are written")
{
    using Catch::Matchers::ContainsSubstring;
    for (auto const* const host : {"evil%0d%0aX-Injected%3a%20yes", "evil%0a", "evil%00.example", "ev%20il", "a%2fb",
                                   "a%3ab", "a%40b", "%c3%a9", "[v1.a:b]", "a!b", "a,b", "a;b"}) {
        auto const text = std::string{"https://"} + host + "/x";
        CHECK_THAT(refused(text), ContainsSubstring("letters"));
        CHECK(followed("https://a/b", text) == "error");
    }
    CHECK(parsed("http:"
                 "//My_old-host.example.:80/x")
              .host == "My_old-host.example.");
    CHECK(parsed("http:"
                 "//%61bc/x")
              .host == "abc");
    CHECK(parsed("http://[::ffff:10.0.0.1]/x").host == "::ffff:10.0.0.1");
}

TEST_CASE("a redirect is resolved against where it came from")
{
    CHECK(followed("http://a/b/c?d", "e") == "http://a/b/e");
    CHECK(followed("http://a/b/c?d", "/e?f") == "http://a/e?f");
    CHECK(followed("http://a:8000/b/c/d", "../e") == "http://a:8000/b/e");
    CHECK(followed("http://a/b", "//other:81/e") == "http://other:81/e");
    CHECK(followed("http://a/b", "http://other/e") == "http://other/e");
    CHECK(followed("http://a/b", "https://a/b") == "https://a/b");
    CHECK(followed("https://a/b", "//c/d") == "https://c/d");
    CHECK(followed("https://a/b", "http://a/b") == "error");
    CHECK(followed("http://a/b", "http://me@a/b") == "error");
    CHECK(followed("http://me:secret@a/b", "/c") == "http://me:secret@a/c");
    CHECK(followed("http://a/b", "e\tf") == "error");
}

TEST_CASE("characters that no URL may have are escaped in its path and query, and no others")
{
    CHECK(parsed("http://h/a[1]{2}|3\\^`\"<>/b?x=[y]|z#{f}").target ==
          "/a%5B1%5D%7B2%7D%7C3%5C%5E%60%22%3C%3E/b?x=%5By%5D%7Cz");
    CHECK(parsed("https://h/\xc3\xa9?q=\xe2\x82\xac").target == "/%C3%A9?q=%E2%82%AC");
    CHECK(parsed("https://h?[]").target == "/?%5B%5D");
    CHECK(parsed("http://[fd77::2]/a[").target == "/a%5B");
    // As it was written: it may be signed.
    CHECK(parsed("http://h/%5b%5B%7c%e9?X-Amz-Signature=a%2Fb+c,d").target ==
          "/%5b%5B%7c%e9?X-Amz-Signature=a%2Fb+c,d");
    CHECK(parsed("http://h/100%?a=%zz&b=%4").target == "/100%25?a=%25zz&b=%254");
    CHECK(followed("http://a/b/c", "d[1] \xc3\xa9") == "http://a/b/d%5B1%5D%20%C3%A9");
    CHECK(followed("http://a/b/c", "//other/d e") == "http://other/d%20e");
    CHECK(followed("http://a/b/c", "/d:e?f|g") == "http://a/d:e?f%7Cg");
    CHECK(followed("http://a/b/c", "?x={y}") == "http://a/b/c?x=%7By%7D");
    for (auto const* const text : {"http://h/a b", "http://h/a\tb", "http://h/a\nb", "http://h/a\x7f",
                                   "http:"
                                   "//[h/a",
                                   "http:"
                                   "//h|/a",
                                   "http:"
                                   "//\xc3\xa9/a"})
        CHECK_FALSE(refused(text).empty());
}

TEST_CASE("an origin is scheme, host and port")
{
    CHECK(is_same_origin(parsed("https://a/b"), parsed("https://a:443/c?d")));
    CHECK_FALSE(is_same_origin(parsed("https://a/b"), parsed("http://a:443/b")));
    CHECK_FALSE(is_same_origin(parsed("https://a/b"), parsed("https://a:444/b")));
    CHECK_FALSE(is_same_origin(parsed("https://a/b"), parsed("https://c/b")));
}

TEST_CASE("a URL that any store has signed is one")
{
    for (auto const* const query :
         {"AWSAccessKeyId=id&Signature=a%2Bb%3D&Expires=1893456000", "X-Amz-Expires=60&X-Amz-Signature=abc",
          "X-Goog-Signature=ab", "GoogleAccessId=id&Signature=ab", "sv=2024&sr=b&sig=ab", "x-oss-signature=ab",
          "q-sign-algorithm=sha1&q-signature=ab", "Expires=1&Signature=ab&Key-Pair-Id=c"})
        CHECK(parsed(std::string{"http://h/k?"} + query).is_signed());
    for (auto const* const path :
         {"k", "k?X-Amz-Expires=60", "Signature=1", "k?a=Signature=1", "k?signatures=1", "k?", "k?&"})
        CHECK_FALSE(parsed(std::string{"http://h/"} + path).is_signed());
    constexpr auto field = "x-amz-checksum-mode";
    CHECK_FALSE(parsed("http://h/k?X-Amz-Expires=60").signs(field));
    CHECK_FALSE(parsed("http://h/k?X-Amz-SignedHeaders=host&X-Amz-Signature=x-amz-checksum-mode").signs(field));
    CHECK(parsed("http://h/k?X-Amz-SignedHeaders=host%3Bx-amz-checksum-mode&X-Amz-Signature=abc").signs(field));
}

TEST_CASE("a URL is shown without its secrets")
{
    CHECK(without_secrets("http://storage/a%20b?list&versionId=7#part") == "http://storage/a%20b?list&versionId=7");
    CHECK(without_secrets("http://me:secret@h/a@b") == "http://h/a@b");
    CHECK(without_secrets("//me:secret@h/a") == "//h/a");
    CHECK(without_secrets("http://h/k?X-Amz-Credential=id&X-Amz-Signature=abc&partNumber=2&") ==
          "http://h/k?X-Amz-Credential=...&X-Amz-Signature=...&partNumber=2&");
    CHECK(without_secrets("me:secret@storage/a?token=abc") == "me:secret@storage/a?token=...");
}

// Of what is no URL nobody knows where the password ends.
TEST_CASE("an invalid URL is shown from the last @ on")
{
    for (auto const* const password : {"pa/ss", "pa#ss", "pa?ss", "pa?ss=x", "pa@ss", "pa ss", "p%ss", "[pass"}) {
        INFO(password);
        CHECK(without_secrets(std::string{"http://me:"} + password + "@h/x?token=abc") == "http://h/x?token=...");
        CHECK(without_secrets(std::string{"http://me:"} + password + "@[h/x") ==
              "http:"
              "//[h/x");
    }
    CHECK(without_secrets("http://me:se@cret@h/a@b") == "http://b");
    CHECK(without_secrets("http://h/a b") == "http://h/a b");
    CHECK(without_secrets("me:[secret@h/a b") == "h/a b");
}

TEST_CASE("of S3's objects all of the key is shown")
{
    CHECK(without_secrets("s3://bucket/a b@c?d=e#f") == "s3://bucket/a b@c?d=e#f");
    CHECK(without_secrets("s3://bucket/\x1b[2J") == "s3://bucket/\\x1b[2J");
}

TEST_CASE("text of a server is shown without control characters")
{
    CHECK(printable("plain, \xc3\xa9 and \xe2\x82\xac and \xf0\x9f\x90\xa7") ==
          "plain, \xc3\xa9 and \xe2\x82\xac and \xf0\x9f\x90\xa7");
    CHECK(printable("\x1b[2J\x07") == "\\x1b[2J\\x07");
    CHECK(printable(" <html>\r\n\t <b>  ") == " <html> <b> ");
    CHECK(printable(std::string_view{"a\0b", 3}) == "a\\x00b");
    CHECK(printable("\xc2\x9b"
                    "31m") == "\\xc2\\x9b31m");
    CHECK(printable("\xff\xe2\x82") == "\\xff\\xe2\\x82");
    CHECK(printable(std::string(400, 'x')) == std::string(300, 'x') + "...");
}

}  // namespace gpurx::ingest::detail
