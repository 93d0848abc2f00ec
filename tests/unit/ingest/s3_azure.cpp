// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <gpurx/ingest/error.hpp>
#include <map>

#include "net/url.hpp"
#include "s3/azure.hpp"
#include "s3/response.hpp"

namespace gpurx::ingest::detail::s3 {

using Catch::Matchers::ContainsSubstring;

namespace {

// Bytes 192 to 255.
constexpr std::string_view key =
    "wMHCw8TFxsfIycrLzM3Oz9DR0tPU1dbX2Nna29zd3t/g4eLj5OXm5+jp6uvs7e7v8PHy8/T19vf4+fr7/P3+/w==";

std::string seen(std::string_view text)
{
    error_code code;
    diagnostics why;
    auto const found = parse_location(text, code, why);
    if (code)
        return code == errc::bad_url ? why.advice.substr(0, why.advice.find(',')) : code.message();
    CHECK(found.of == store::azure);
    return fmt::format("{} | {}", found.bucket, found.key);
}

azure_setup set_up_with(std::map<std::string, std::string, std::less<>> const& variables,
                        std::string const& endpoint = {}, bool may_know = true)
{
    auto const variable = [&](std::string_view name) {
        auto const found = variables.find(name);
        return found == variables.end() ? std::string{} : found->second;
    };
    return azure_set_up({.endpoint = endpoint}, variable, "acct", may_know);
}

std::string endpoint_with(std::string const& connection, std::string const& endpoint = {}, std::string const& own = {})
{
    return set_up_with({{"AZURE_STORAGE_CONNECTION_STRING", connection}, {"AZURE_STORAGE_BLOB_ENDPOINT", own}},
                       endpoint)
        .at.endpoint;
}

std::string secrets_with(std::map<std::string, std::string, std::less<>> const& variables, bool may_know = true)
{
    auto const found = set_up_with(variables, {}, may_know);
    return fmt::format("{} | {}", found.sas, found.key);
}

// As lines.
std::string fields_of(std::string_view target, std::optional<credentials> const& by, header_fields const& fields = {})
{
    std::string text;
    for (auto const& each : azure_fields({.method = "GET", .target = target, .fields = fields, .payload_hash = {}}, by,
                                         time_point{std::chrono::seconds{784'111'777}}))
        text += fmt::format("{}: {}\n", each.name, each.value);
    return text;
}

std::string listed(std::string_view content, std::string_view next = "<NextMarker />")
{
    std::string why;
    auto const page = parse_listing(
        fmt::format("<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ContainerName=\"models\">"
                    "<Blobs>{}</Blobs>{}</EnumerationResults>",
                    content, next),
        "acct/models", why, store::azure);
    if (!page)
        return why;
    std::string all;
    for (auto const& each : page->objects)
        all += fmt::format("{} {} {} ", each.url, each.size, each.etag);
    return all + page->next;
}

}  // namespace

TEST_CASE("s3: a location of Azure has an account, a container and a blob")
{
    CHECK(seen("az://acct/models/a b?c#d%20/") == "acct/models | a b?c#d%20/");
    CHECK(seen("az://acct/models//a") == "acct/models | /a");
    CHECK(seen("az://acct/models") == "acct/models | ");
    CHECK(seen("az://acct/$root/a") == "acct/$root | a");
    CHECK(seen("az://0acct9/2-b/a") == "0acct9/2-b | a");
    for (auto const* const text :
         {"az://", "az://acct", "az://acct/", "az://ac/models/a", "az://Acct/models/a", "az://a-cct/models/a",
          "az://aaaaaaaaaaaaaaaaaaaaaaaaa/models/a", "az://acct/mo/a", "az://acct/Models/a", "az://acct/a--b/a",
          "az://acct/-ab/a", "az://acct/ab-/a", "az://acct/a_b/a", "az://acct/$$root/a", "az://user@acct/models/a"})
        CHECK(seen(text) == "write it like az://account/container/blob");
    for (auto const* const text : {"az://acct/models", "az://acct/models/", "az://acct/models/a/", "az://acct"})
        CHECK(is_prefix(text));
    CHECK_FALSE(is_prefix("az://acct/models/a"));
    CHECK(is_literal_url("az://acct/models/a?b"));
    CHECK(shares_secrets("az://acct/models/a", "az://acct/others/b"));
    CHECK_FALSE(shares_secrets("az://acct/models/a", "az://acct2/models/a"));
    CHECK_FALSE(shares_secrets("az://acct/models/a", "https://acct/models/a"));
    CHECK(shares_secrets("s3://models/a", "s3://others/a"));
}

TEST_CASE("s3: the account of Azure is in the host, or in the path of another endpoint")
{
    std::pair<std::string, std::string> const query[] = {{"comp", "list"}};
    auto const own = set_up_with({}).at;
    CHECK(url_of({"acct/models", "a b"}, own) == "https://acct.blob.core.windows.net/models/a%20b");
    CHECK(url_of("acct/$web", query, own) == "https://acct.blob.core.windows.net/$web?comp=list");
    CHECK(endpoint_with("", "http://h:10000/") == "http://h:10000/acct");
    CHECK(endpoint_with("", "http://h:10000/acct/") == "http://h:10000/acct");
    CHECK(endpoint_with("", "http://acct") == "http://acct/acct");
    CHECK(endpoint_with("", "http://h/my-acct") == "http://h/my-acct/acct");
    CHECK(endpoint_with("", "https://acct.z1.example.org") == "https://acct.z1.example.org");
    CHECK(endpoint_with("", "", "http://h") == "http://h/acct");
    CHECK(endpoint_with("AccountName=acct;BlobEndpoint=https://own.example.org/") == "https://own.example.org/");
    CHECK(endpoint_with("AccountName=acct;BlobEndpoint=http://a", "http://b", "http://c") == "http://b/acct");
    CHECK(endpoint_with("AccountName=acct;BlobEndpoint=http://a", "", "http://c") == "http://c/acct");
    CHECK(endpoint_with("AccountName=other;BlobEndpoint=http://a") == "https://acct.blob.core.windows.net");
    CHECK(endpoint_with("AccountName=acct;EndpointSuffix=example.org") == "https://acct.blob.example.org");
    CHECK(url_of({"acct/models", "a"}, service{.endpoint = "https://own.example.org/", .region = {}}) ==
          "https://own.example.org/models/a");
}

TEST_CASE("s3: secrets of Azure are for their account")
{
    std::string const sas = "AZURE_STORAGE_SAS_TOKEN";
    std::string const secret = "AZURE_STORAGE_KEY";
    std::string const account = "AZURE_STORAGE_ACCOUNT";
    std::string const connection = "AZURE_STORAGE_CONNECTION_STRING";
    CHECK(secrets_with({{sas, "?a=b&sig=c"}, {secret, "k"}}) == "a=b&sig=c | k");
    CHECK(secrets_with({{sas, " ?a=b&sig=c\n"}, {secret, "k==\r\n"}, {account, "acct\n"}}) == "a=b&sig=c | k==");
    CHECK(secrets_with({{connection, "AccountName=acct;AccountKey=k==\n"}}) == " | k==");
    CHECK(secrets_with({{sas, "s"}, {secret, "k"}}, false) == " | ");
    CHECK(secrets_with({{sas, "s"}, {secret, "k"}, {account, "acct"}}, false) == "s | k");
    CHECK(secrets_with({{sas, "s"}, {secret, "k"}, {account, "other"}}) == " | ");
    CHECK(secrets_with({{connection, "AccountName=acct;AccountKey=k==;X=y"}, {account, "other"}, {secret, "j"}}) ==
          " | k==");
    CHECK(secrets_with({{connection, "AccountName=other;AccountKey=k;BlobEndpoint=https://acct.example.org"}}) ==
          " | ");
    CHECK(secrets_with({{connection, "BlobEndpoint=https://acct.example.org/;SharedAccessSignature=a=b&sig=c"}}) ==
          "a=b&sig=c | ");
    CHECK(secrets_with({{connection, "BlobEndpoint=https://acct2.example.org/;SharedAccessSignature=s"}}) == " | ");
    CHECK(secrets_with({{connection, "AccountKey=k"}}) == " | ");
}

// Python has computed both signatures.
TEST_CASE("s3: requests to Azure are signed by the account's key")
{
    auto const by = shared_key("account", key);
    REQUIRE(by);
    constexpr auto const* begin = "x-ms-version: 2024-11-04\nx-ms-date: Sun, 06 Nov 1994 08:49:37 GMT\n";
    CHECK(fields_of("/account/models/a%20b%2Bc", by,
                    {{"Host", "h"}, {"Range", "bytes=0-99"}, {"Accept-Encoding", "identity"}}) ==
          begin + std::string{"Authorization: SharedKey account:RLz6BeLP4nNzaMxP0O3qRrUi0S927PBX2TP/JERHy/s=\n"});
    CHECK(fields_of("/models?restype=container&prefix=a%20b%2F&marker=2%218%2F%2B%3D&include=metadata&comp=list", by) ==
          begin + std::string{"Authorization: SharedKey account:F/QLaWFUDFvinxfV26RFYcf4rNttG8SJWKX+WZSp93o=\n"});
    for (auto const* const wrong : {"a", "not base64", "\xff\xff\xff\xff"})
        CHECK_FALSE(shared_key("account", wrong));
    CHECK(shared_key("account", "YQ==")->secret_key == "a");
    CHECK(shared_key("account", "YWI=")->secret_key == "ab");
}

TEST_CASE("s3: each request to Azure has one version, and no secret if there is none")
{
    CHECK(fields_of("/models/a", std::nullopt) == "x-ms-version: 2024-11-04\n");
    credentials token;
    token.fields = {{"Authorization", "Bearer x"}};
    CHECK(fields_of("/models/a", token) == "Authorization: Bearer x\nx-ms-version: 2024-11-04\n");
    token.fields = {{"X-MS-Version", "2099-01-01"}};
    CHECK(fields_of("/models/a", token) == "X-MS-Version: 2099-01-01\n");
}

TEST_CASE("s3: a page of Azure has blobs without directories, and the way on")
{
    auto const blob = [](std::string_view name, std::string_view more = {}, std::string_view properties = {}) {
        return fmt::format(
            "<Blob>{}<Properties><Creation-Time>x</Creation-Time><Etag>0x8D</Etag>{}"
            "<Content-Length>7</Content-Length></Properties>{}</Blob>",
            name, properties, more);
    };
    CHECK(listed(blob("<Name>a b+%20&amp;c/d</Name>")) == "az://acct/models/a b+%20&c/d 7 \"0x8D\" ");
    CHECK(listed(blob("<Name Encoded=\"true\">a%EF%BF%BE+%25</Name>")) == "az://acct/models/a\ufffe+% 7 \"0x8D\" ");
    CHECK(listed(blob("<Name Encoded=\"false\">a%20</Name>")) == "az://acct/models/a%20 7 \"0x8D\" ");
    CHECK(listed(blob("<Name>a</Name>", "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata>") +
                 blob("<Name>b</Name>", "<Metadata><hdi_isfolder>false</hdi_isfolder></Metadata>", "<ETag>x</ETag>") +
                 blob("<Name>c</Name>", {}, "<ResourceType>directory</ResourceType>") +
                 blob("<Name>f</Name>", "<Metadata><Hdi_isfolder>True</Hdi_isfolder></Metadata>") +
                 blob("<Name>d</Name>", {}, "<ResourceType>file</ResourceType>") +
                 "<BlobPrefix><Name>e/</Name></BlobPrefix>") ==
          "az://acct/models/b 7 \"0x8D\" az://acct/models/d 7 \"0x8D\" ");
    CHECK(listed("", "<NextMarker>2!8!&lt;a&gt;</NextMarker>") == "2!8!<a>");
    CHECK_THAT(listed("<Blob><Name>a</Name></Blob>"), ContainsSubstring("without key or size"));
    std::string why;
    CHECK_FALSE(parse_listing("<ListBucketResult></ListBucketResult>", "acct/models", why, store::azure));
    CHECK_FALSE(parse_listing("<EnumerationResults></EnumerationResults>", "models", why));
    CHECK_FALSE(parse_listing("<EnumerationResults><Blobs>", "acct/models", why, store::azure));
}

TEST_CASE("s3: refusals of Azure have its text and advice")
{
    auto const words = [](std::string const& code) {
        return words_of(*parse_refusal(fmt::format("\xef\xbb\xbf<?xml version=\"1.0\"?><Error><Code>{}</Code>"
                                                   "<Message>Text.\nTime:x</Message></Error>",
                                                   code)),
                        store::azure);
    };
    CHECK_THAT(words("BlobNotFound"), ContainsSubstring("BlobNotFound: Text.") && ContainsSubstring("capital letters"));
    CHECK_THAT(words("AuthorizationPermissionMismatch"), ContainsSubstring("Storage Blob Data Reader"));
    CHECK_THAT(words("AuthorizationFailure"), ContainsSubstring("network rules"));
    for (auto const* const code : {"NoAuthenticationInformation", "PublicAccessNotPermitted", "ResourceNotFound"})
        CHECK_THAT(words(code), ContainsSubstring("set AZURE_STORAGE_KEY"));
    auto const of_header = parse_refusal("", "AuthenticationFailed");
    REQUIRE(of_header);
    CHECK_THAT(words_of(*of_header, store::azure), ContainsSubstring("clock"));
    CHECK(is_about_expiry(*of_header));
    CHECK(parse_refusal("<Error><Code>A</Code></Error>", "B")->code == "A");
    CHECK_FALSE(parse_refusal("", ""));
}

}  // namespace gpurx::ingest::detail::s3
