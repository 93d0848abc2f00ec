// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "s3/credentials.hpp"

namespace gpurx::ingest::detail::s3 {

using Catch::Matchers::ContainsSubstring;
using namespace std::chrono;

namespace {

constexpr time_point noon = sys_days{2026y / November / 23} + 12h;

std::string said_of(std::string_view json)
{
    std::string why;
    CHECK_FALSE(parse_credentials(json, why));
    CHECK_THAT(why, !ContainsSubstring("hidden"));
    return why;
}

}  // namespace

TEST_CASE("s3: times are read as services write them, and written as signatures have them")
{
    CHECK(parse_time("2026-11-23T12:00:00Z") == noon);
    CHECK(parse_time("2026-11-23T12:00:00.123Z") == noon);
    CHECK(parse_time("2026-11-23T12:00:00+00:00") == noon);
    CHECK(parse_time("2024-02-29T23:59:59Z") == sys_days{2024y / 2 / 29} + 23h + 59min + 59s);
    CHECK(basic_time(noon + 61s) == "20261123T120101Z");
    for (auto const* const text : {"", "2026-11-23", "2026-11-23T12:00:00", "2026-11-23T12:00:00+01:00",
                                   "2026-02-30T12:00:00Z", "2026-11-23T24:00:00Z", "2026-11-23 12:00:00Z",
                                   "-026-11-23T12:00:00Z", "2026-11-2xT12:00:00Z", "2026-11-23T12:00:00.Zx"})
        CHECK_FALSE(parse_time(text));
}

TEST_CASE("s3: the documents of the instance and of a container are read")
{
    std::string why;
    auto const found = parse_credentials(
        R"({"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "id", "SecretAccessKey": "key", "Token": "token",
            "Expiration": "2026-11-23T12:00:00Z"})",
        why);
    REQUIRE(found);
    CHECK(found->access_key == "id");
    CHECK(found->secret_key == "key");
    CHECK(found->session_token == "token");
    CHECK(found->expires == noon);
    auto const lasting = parse_credentials(R"({"AccessKeyId": "id", "SecretAccessKey": "key"})", why);
    REQUIRE(lasting);
    CHECK(lasting->session_token.empty());
    CHECK_FALSE(lasting->expires);
}

TEST_CASE("s3: a document that has no credentials is refused, and its secrets not shown")
{
    CHECK_THAT(said_of("<html>hidden"), ContainsSubstring("JSON object"));
    CHECK_THAT(said_of("[\"hidden\"]"), ContainsSubstring("JSON object"));
    CHECK_THAT(said_of(R"({"Code": "AssumeRoleUnauthorizedAccess", "Message": "no trust"})"),
               ContainsSubstring("AssumeRoleUnauthorizedAccess no trust"));
    CHECK_THAT(said_of(R"({"AccessKeyId": "id"})"), ContainsSubstring("SecretAccessKey"));
    CHECK_THAT(said_of(R"({"AccessKeyId": 1, "SecretAccessKey": "hidden"})"), ContainsSubstring("AccessKeyId"));
    CHECK_THAT(said_of(R"({"AccessKeyId": "id", "SecretAccessKey": "hidden", "Expiration": "soon"})"),
               ContainsSubstring("Expiration"));
    CHECK_THAT(said_of(R"({"AccessKeyId": "id\r\nX: y", "SecretAccessKey": "hidden"})"),
               ContainsSubstring("AccessKeyId"));
}

}  // namespace gpurx::ingest::detail::s3
