// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "s3/response.hpp"

namespace gpurx::ingest::detail::s3 {

using Catch::Matchers::ContainsSubstring;

namespace {

constexpr std::string_view head =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
    "<Name>models</Name><Prefix>m/</Prefix>";
constexpr std::string_view tail = "</ListBucketResult>";

std::string page_of(std::string_view content)
{
    return std::string{head} + std::string{content} + std::string{tail};
}

std::string refused(std::string const& xml)
{
    std::string why;
    CHECK_FALSE(parse_listing(xml, "models", why));
    return why;
}

}  // namespace

TEST_CASE("s3: elements are found by their whole name")
{
    CHECK(element("<Keys>1</Keys><Key>2</Key>", "Key") == "2");
    CHECK(element("<Key></Key>", "Key") == "");
    CHECK_FALSE(element("<Key>2", "Key"));
    CHECK_FALSE(element("<Key", "Key"));
    CHECK_FALSE(element("", "Key"));
    CHECK(unescaped("&lt;a&gt; &amp;amp; &quot;x&quot; &#39;&#34; &other; &") == "<a> &amp; \"x\" '\" &other; &");
}

TEST_CASE("s3: a refusal has the server's text and advice")
{
    auto const missing = parse_refusal(
        "<?xml version=\"1.0\"?>\n<Error><Code>NoSuchKey</Code><Message>The key &quot;x&quot; is missing.</Message>");
    REQUIRE(missing);
    CHECK(words_of(*missing) == "NoSuchKey: The key \"x\" is missing.");
    CHECK_FALSE(is_about_expiry(*missing));

    auto const skewed = parse_refusal(
        "<Error><Code>RequestTimeTooSkewed</Code><Message>Too different.</Message>"
        "<RequestTime>20261123T100000Z</RequestTime><ServerTime>2026-11-23T12:00:00Z</ServerTime></Error>");
    REQUIRE(skewed);
    CHECK_THAT(words_of(*skewed), ContainsSubstring("The time is 20261123T100000Z here, 2026-11-23T12:00:00Z there") &&
                                      ContainsSubstring("clock"));
    CHECK(parse_refusal("<Error><Code>X</Code><Region>eu-west-1</Region>")->region == "eu-west-1");
    CHECK(is_about_expiry(*parse_refusal("<Error><Code>ExpiredToken</Code>")));
    for (auto const* const other : {"", "<html>", "<Error>", "<Code>NoSuchKey</Code>", "<Error><Code>NoSuch"})
        CHECK_FALSE(parse_refusal(other));
}

TEST_CASE("s3: a page of a listing has names, sizes and the way on")
{
    std::string why;
    auto const page = parse_listing(
        page_of(
            "<IsTruncated>true</IsTruncated><EncodingType>url</EncodingType>"
            "<Contents><Key>m/a+b%2Fc%C3%A4</Key><Size>18446744073709551615</Size><ETag>&quot;e&quot;</ETag></Contents>"
            "<Contents><Size>0</Size><Key>m/</Key></Contents>"
            "<NextContinuationToken>1/a==</NextContinuationToken>"),
        "models", why);
    INFO(why);
    REQUIRE(page);
    REQUIRE(page->objects.size() == 2);
    CHECK(page->objects[0].url == "s3://models/m/a b/cä");
    CHECK(page->objects[0].size == UINT64_MAX);
    CHECK(page->objects[0].etag == "\"e\"");
    CHECK(page->objects[1].url == "s3://models/m/");
    CHECK(page->next == "1/a==");
    auto const last = parse_listing(page_of("<IsTruncated>false</IsTruncated>"), "models", why);
    REQUIRE(last);
    CHECK(last->objects.empty());
    CHECK(last->next.empty());
}

TEST_CASE("s3: an answer that is not a page of a listing is refused")
{
    CHECK_THAT(refused(""), ContainsSubstring("not a page"));
    CHECK_THAT(refused("<html></html>"), ContainsSubstring("not a page"));
    auto const whole = page_of("<IsTruncated>false</IsTruncated>");
    for (std::size_t size = 0; size < whole.size(); ++size)
        CHECK_FALSE(refused(whole.substr(0, size)).empty());
    CHECK_THAT(refused(page_of("<IsTruncated>true</IsTruncated>")), ContainsSubstring("token"));
    CHECK_THAT(refused(page_of("<IsTruncated>false</IsTruncated><NextContinuationToken>x</NextContinuationToken>")),
               ContainsSubstring("token"));
    constexpr std::string_view start = "<IsTruncated>false</IsTruncated><EncodingType>url</EncodingType><Contents>";
    for (auto const* const wrong :
         {"<Key>a</Key>", "<Size>1</Size>", "<Key>a</Key><Size>-1</Size>", "<Key>a</Key><Size>1x</Size>",
          "<Key>%</Key><Size>1</Size>", "<Key>%2</Key><Size>1</Size>", "<Key>%zz</Key><Size>1</Size>",
          "<Key>a</Key><Size>18446744073709551616</Size>", "<Key></Key><Size>1</Size>", "<Key>a</Key><Size></Size>"})
        CHECK_THAT(refused(page_of(std::string{start} + wrong + "</Contents>")),
                   ContainsSubstring("without key or size"));
    CHECK_THAT(refused(page_of("<IsTruncated>false</IsTruncated><Contents><Key>a</Key><Size>1</Size></Contents>")),
               ContainsSubstring("encoding-type"));
}

}  // namespace gpurx::ingest::detail::s3
