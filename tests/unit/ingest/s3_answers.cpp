// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "s3/response.hpp"
#include "s3/xml.hpp"

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

// "/PATH=TEXT" of each element that ends, and whether that is all.
std::string read(std::string_view xml)
{
    xml_reader reader{xml};
    std::string all;
    while (reader.next())
        all.append(reader.path()).append(1, '=').append(reader.text()).append(1, ' ');
    return reader.is_whole() ? all + "whole" : all;
}

std::string refused(std::string const& xml)
{
    std::string why;
    CHECK_FALSE(parse_listing(xml, "models", why));
    return why;
}

}  // namespace

TEST_CASE("s3: XML is read element by element, in each form that it has")
{
    CHECK(read("<Keys>1</Keys>") == "/Keys=1 whole");
    CHECK(read("\xef\xbb\xbf<?xml version='1.0'?>\n<a b='>' c=\"/>\">1<!-- <d>2</d> --></a>\n<!-- --> ") ==
          "/a=1 whole");
    CHECK(read("<x:a xmlns:x='u'><x:b /><b/>\n<c d='/'></c></x:a >") == "/a/b= /a/b= /a/c= /a= whole");
    CHECK(read("<a>&lt;&#65;&#x42;&#228;&#x6f22;&#x1F600;<![CDATA[&amp;<b>]]>&gt;</a>") ==
          "/a=<AB\u00e4\u6f22\U0001f600&amp;<b>> whole");
    CHECK(read("<a>&amp;amp; &quot;x&apos; &other; & &;&#0;&#xd800;&#x110000;&#1x;</a>") ==
          "/a=&amp; \"x' &other; & &;&#0;&#xd800;&#x110000;&#1x; whole");
    for (auto const* const cut : {"<a>1", "<a><b>1</b>", "<a", "<a b='>", "<a>1<!--", "<a><![CDATA[1", "<a>1</a"})
        CHECK(read(cut).find("/a=") == std::string::npos);
    for (auto const* const other :
         {"", " ", "<a>1</b>", "</a>", "< >", "<!DOCTYPE a><a/>", "<a/><b/>", "x<a/>", "<a/>x"})
        CHECK_FALSE(read(other).ends_with("whole"));
    std::string nested;
    for (auto i = 0; i < 1'000'000; ++i)
        nested += "<a>";
    CHECK(read(nested).empty());
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
    auto const prefixed = parse_refusal(
        "<e:Response xmlns:e='u'><e:Error xml:lang='en'><e:Code>\n<![CDATA[Denied]]>\n</e:Code><e:Message/>");
    REQUIRE(prefixed);
    CHECK(words_of(*prefixed) == "Denied");
    auto const denied = parse_refusal("<Error><Code>AccessDenied</Code><Message>Denied.</Message></Error>");
    CHECK_THAT(words_of(*denied), ContainsSubstring("s3:GetObject"));
    CHECK_THAT(words_of(*denied, store::google),
               ContainsSubstring("storage.objects.get") && !ContainsSubstring("s3:GetObject"));
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
    auto const of_google = parse_listing(page_of("<IsTruncated>false</IsTruncated><Contents><Key>m</Key><Generation>1</"
                                                 "Generation><Size>1</Size></Contents>"),
                                         "models", why, store::google);
    REQUIRE(of_google);
    CHECK(of_google->objects.front().url == "gs://models/m");
}

// botocore reads each of them.
TEST_CASE("s3: a page is read as other servers write it")
{
    auto const name_in = [](std::string const& xml) {
        std::string why;
        auto const page = parse_listing(xml, "models", why);
        INFO(xml);
        INFO(why);
        REQUIRE(page);
        REQUIRE(page->objects.size() == 1);
        CHECK(page->objects.front().size == 7);
        return page->objects.front().url.substr(std::string_view{"s3://models/"}.size()) + page->next;
    };
    auto const in = [&](std::string_view key, std::string_view more = "<EncodingType>url</EncodingType>") {
        return name_in(page_of(fmt::format("{}<Contents><Key>{}</Key><Size>7</Size></Contents>", more, key)));
    };
    CHECK(in("<![CDATA[a%20b]]>") == "a b");
    CHECK(in("&#x61;&#98;") == "ab");
    CHECK(in("a<!-- b -->c") == "ac");
    CHECK(in("a+b%20&amp;", "") == "a+b%20&");
    CHECK(in("100%, %zz", "<EncodingType> url\n</EncodingType>") == "100%, %zz");
    CHECK(in("a", "<IsTruncated> True </IsTruncated><NextContinuationToken>-b</NextContinuationToken>") == "a-b");
    CHECK(in("a", "<NextContinuationToken><![CDATA[-b]]></NextContinuationToken>") == "a-b");
    CHECK(in("a", "<IsTruncated>false</IsTruncated><NextContinuationToken>-b</NextContinuationToken>") == "a");
    CHECK(in("a",
             "<IsTruncated>false</IsTruncated><NextContinuationToken/><CommonPrefixes><Prefix>b/</Prefix>"
             "</CommonPrefixes><Delimiter/>") == "a");
    CHECK(
        name_in("<s:ListBucketResult xmlns:s='u'><s:Contents n='1'><s:Owner><s:Key>x</s:Key></s:Owner><s:Key>a</s:Key>"
                "<s:Size>\n 7 </s:Size></s:Contents><?pi <Contents>?></s:ListBucketResult>\r\n") == "a");
    CHECK(name_in(page_of("<Contents><Key>%C3%A4</Key><Size>7</Size></Contents><EncodingType>url</EncodingType>") +
                  "\n") == "\u00e4");
}

TEST_CASE("s3: an answer that is not a page of a listing is refused")
{
    CHECK_THAT(refused(""), ContainsSubstring("not a page"));
    CHECK_THAT(refused("<html></html>"), ContainsSubstring("not a page"));
    auto const whole = page_of("<IsTruncated>false</IsTruncated>");
    for (std::size_t size = 0; size < whole.size(); ++size)
        CHECK_FALSE(refused(whole.substr(0, size)).empty());
    CHECK_THAT(refused(page_of("<IsTruncated>true</IsTruncated>")), ContainsSubstring("token"));
    CHECK_THAT(refused(page_of("<IsTruncated>maybe</IsTruncated>")), ContainsSubstring("not a page"));
    CHECK_THAT(refused(page_of("<A>") + "</A>"), ContainsSubstring("not a page"));
    CHECK_THAT(refused("<!DOCTYPE x []>" + whole), ContainsSubstring("not a page"));
    CHECK_THAT(refused(whole + whole), ContainsSubstring("not a page"));
    for (auto const* const wrong :
         {"<Key>a</Key>", "<Size>1</Size>", "<Key>a</Key><Size>-1</Size>", "<Key>a</Key><Size>1x</Size>",
          "<Key>a</Key><Size>18446744073709551616</Size>", "<Key></Key><Size>1</Size>", "<Key>a</Key><Size></Size>",
          "<Key>a</Key><Owner><Size>1</Size></Owner>"})
        CHECK_THAT(refused(page_of(fmt::format("<Contents>{}</Contents>", wrong))),
                   ContainsSubstring("without key or size"));
}

}  // namespace gpurx::ingest::detail::s3
