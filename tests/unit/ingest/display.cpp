// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <string>

#include "net/display.hpp"

namespace gpurx::ingest::detail {

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
TEST_CASE("what is no URL is shown from the last @ on")
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

TEST_CASE("what a server says is shown without what a terminal obeys")
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
