// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <gpurx/ingest/error.hpp>

#include "s3/location.hpp"

namespace gpurx::ingest::detail::s3 {

namespace {

location parsed(std::string_view text)
{
    error_code code;
    diagnostics why;
    auto result = parse_location(text, code, why);
    INFO(text << ": " << describe(code, why));
    REQUIRE_FALSE(code);
    return result;
}

bool is_refused(std::string_view text)
{
    error_code code;
    diagnostics why;
    static_cast<void>(parse_location(text, code, why));
    return code == errc::bad_url && why.object == text && why.advice.find("s3://bucket/key") != std::string::npos;
}

}  // namespace

TEST_CASE("s3: all behind the bucket is the key")
{
    CHECK(parsed("s3://models/llama/part 1.safetensors").bucket == "models");
    CHECK(parsed("s3://models/llama/part 1.safetensors").key == "llama/part 1.safetensors");
    CHECK(parsed("s3://models//a?b#c%20/").key == "/a?b#c%20/");
    CHECK(parsed("s3://models").key.empty());
    CHECK(parsed("s3://models/").key.empty());
    CHECK(parsed("s3://My_old.bucket/x").bucket == "My_old.bucket");
}

TEST_CASE("s3: an invalid bucket is refused")
{
    for (auto const* const text : {"s3://", "s3:///key", "s3://ab/key", "s3://arn:aws:s3:x/key", "s3://a..b/key",
                                   "s3://.abc/key", "s3://user@bucket/key", "s3:bucket/key", "S3://bucket/key", ""})
        CHECK(is_refused(text));
    error_code code;
    diagnostics why;
    static_cast<void>(parse_location("s3://\x1b[2J/key", code, why));
    CHECK(why.object == "s3://\\x1b[2J/key");
}

TEST_CASE("s3: objects of Google are at its server, an emulator or an endpoint")
{
    auto const object = parsed("gs://models/a b");
    CHECK(object.of == store::google);
    CHECK(parsed("s3://models/a").of == store::aws);
    auto const url_with = [&](s3_options const& options, std::string const& emulator) {
        return url_of(object, google_service(options, [&](std::string_view name) {
                          return name == "STORAGE_EMULATOR_HOST" ? emulator : "http://other";
                      }));
    };
    CHECK(url_with({}, "") == "https://storage.googleapis.com/models/a%20b");
    CHECK(url_with({}, "127.0.0.1:9023") == "http://127.0.0.1:9023/models/a%20b");
    CHECK(url_with({}, "https://emulator/") == "https://emulator/models/a%20b");
    CHECK(url_with({.endpoint = "http://own:1"}, "emulator") == "http://own:1/models/a%20b");
    CHECK(google_service({}, [](std::string_view) { return std::string{}; }).region == "auto");
    CHECK(is_prefix("gs://models/a/"));
    error_code code;
    diagnostics why;
    static_cast<void>(parse_location("gs://ab/key", code, why));
    CHECK(code == errc::bad_url);
    CHECK(why.advice.starts_with("write it like gs://bucket/key"));
}

TEST_CASE("s3: AWS is asked by host name, except for buckets with dots, and other servers by path")
{
    service const aws{.endpoint = {}, .region = "eu-west-1"};
    CHECK(url_of({"models", "a/b c"}, aws) == "https://models.s3.eu-west-1.amazonaws.com/a/b%20c");
    CHECK(url_of({"my.models", "a"}, aws) == "https://s3.eu-west-1.amazonaws.com/my.models/a");
    CHECK(url_of({"Models", "a"}, aws) == "https://s3.eu-west-1.amazonaws.com/Models/a");
    CHECK(url_of({"models", "a"}, {.endpoint = {}, .region = "cn-north-1"}) ==
          "https://models.s3.cn-north-1.amazonaws.com.cn/a");
    service const own{.endpoint = "http://127.0.0.1:9000/", .region = "us-east-1"};
    CHECK(url_of({"models", "a/b?c"}, own) == "http://127.0.0.1:9000/models/a/b%3Fc");
}

TEST_CASE("s3: buckets are named by host or by path where that is asked for")
{
    using enum s3_options::addressing;
    service const aws{.endpoint = {}, .region = "eu-west-1", .style = path};
    CHECK(url_of({"models", "a"}, aws) == "https://s3.eu-west-1.amazonaws.com/models/a");
    service own{.endpoint = "http://user:key@example.org/", .region = "us-east-1", .style = virtual_host};
    CHECK(url_of({"models", "a"}, own) == "http://user:key@models.example.org/a");
    CHECK(url_of({"my.models", "a"}, own) == "http://user:key@my.models.example.org/a");
    CHECK(url_of({"My_models", "a"}, own) == "http://user:key@example.org/My_models/a");
    CHECK(url_of("models", {}, own) == "http://user:key@models.example.org/?");
    own.endpoint = "https://example.org/below";
    CHECK(url_of({"models", "a"}, own) == "https://models.example.org/below/a");
    CHECK(addressing_named("virtual") == virtual_host);
    CHECK(addressing_named("path") == path);
    CHECK(addressing_named("auto") == automatic);
    CHECK_FALSE(addressing_named("Path"));
    CHECK_FALSE(addressing_named(""));
}

TEST_CASE("s3: prefixes of keys are told from objects")
{
    for (auto const* const text : {"s3://models", "s3://models/", "s3://models/a/"})
        CHECK(is_prefix(text));
    for (auto const* const text : {"s3://models/a", "http://models/", "models/", ""})
        CHECK_FALSE(is_prefix(text));
}

TEST_CASE("s3: AWS's hosts for S3 are known by their ends")
{
    for (auto const* const host :
         {"s3.amazonaws.com", "models.s3.amazonaws.com", "a.b.s3.eu-west-1.amazonaws.com",
          "models.s3-us-west-2.amazonaws.com", "models.s3.dualstack.eu-west-1.amazonaws.com",
          "models.s3-fips.us-east-1.amazonaws.com", "models.s3-fips.dualstack.us-east-1.amazonaws.com",
          "models.s3-accelerate.amazonaws.com", "models.s3-accelerate.dualstack.amazonaws.com",
          "name-1.s3-accesspoint.eu-west-1.amazonaws.com", "models.s3.cn-north-1.amazonaws.com.cn"})
        CHECK(is_aws(host));
    for (auto const* const host :
         {"ec2-1-2-3-4.compute-1.amazonaws.com", "ec2-1-2-3-4.eu-west-1.compute.amazonaws.com",
          "s3-1.eu-west-1.elb.amazonaws.com", "x.execute-api.eu-west-1.amazonaws.com", "amazonaws.com",
          "s3.x.elb.amazonaws.com", "dualstack.amazonaws.com", "s3-1.compute-1.amazonaws.com"})
        CHECK_FALSE(is_aws(host));
    CHECK(is_aws("models.s3.eu-west-1.amazonaws.com"));
    CHECK(is_aws("s3.cn-north-1.amazonaws.com.cn"));
    CHECK_FALSE(is_aws("amazonaws.com.example.org"));
    CHECK_FALSE(is_aws("s3.aws.example.org"));
    CHECK_FALSE(is_aws(""));
}

TEST_CASE("s3: the URL of a bucket has its parameters encoded")
{
    std::pair<std::string, std::string> const query[] = {{"list-type", "2"}, {"prefix", "a b/ä+&="}};
    CHECK(url_of("models", query, {.endpoint = {}, .region = "x"}) ==
          "https://models.s3.x.amazonaws.com/?list-type=2&prefix=a%20b%2F%C3%A4%2B%26%3D");
    CHECK(url_of("models", query, {.endpoint = "http://h", .region = "x"}) ==
          "http://h/models?list-type=2&prefix=a%20b%2F%C3%A4%2B%26%3D");
}

}  // namespace gpurx::ingest::detail::s3
