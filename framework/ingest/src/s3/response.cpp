// SPDX-License-Identifier: Apache-2.0
#include "response.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/string/predicate.hpp>
#include <charconv>
#include <utility>

#include "xml.hpp"

namespace gpurx::ingest::detail::s3 {

namespace {

std::string_view without_blanks(std::string_view text) noexcept
{
    constexpr std::string_view blanks = " \t\r\n";
    text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
    return text.substr(0, text.find_last_not_of(blanks) + 1);
}

std::optional<std::uint64_t> number_in(std::string_view text) noexcept
{
    std::uint64_t value = 0;
    auto const* const end = text.data() + text.size();
    auto const [stopped, error] = std::from_chars(text.data(), end, value);
    return error == std::errc{} && stopped == end ? std::optional{value} : std::nullopt;
}

// A page as it is written: how its keys are encoded may stand behind them.
struct written_page {
    struct object {
        std::string key, size, etag;
        bool is_encoded = false;    // of itself, as Azure has it
        bool is_directory = false;  // of Azure: a blob that stands for one
    };
    std::vector<object> objects;
    std::string truncated, next, encoding;
    bool is_whole = false;
};

// Names of a page's elements; all but the root are below it.
struct page_names {
    std::string_view root, object, key, size, etag, next;
};
constexpr page_names names_of_s3{.root = "/ListBucketResult",
                                 .object = "/Contents",
                                 .key = "/Contents/Key",
                                 .size = "/Contents/Size",
                                 .etag = "/Contents/ETag",
                                 .next = "/NextContinuationToken"};
constexpr page_names names_of_azure{.root = "/EnumerationResults",
                                    .object = "/Blobs/Blob",
                                    .key = "/Blobs/Blob/Name",
                                    .size = "/Blobs/Blob/Properties/Content-Length",
                                    .etag = "/Blobs/Blob/Properties/Etag",
                                    .next = "/NextMarker"};

// A directory of an account with a hierarchy says so; Hadoop's have this metadata. Some programs write its name with a
// capital letter.
bool says_directory(std::string_view path, std::string_view text)
{
    return (path == "/Blobs/Blob/Properties/ResourceType" && text == "directory") ||
           (boost::algorithm::iequals(path, "/Blobs/Blob/Metadata/hdi_isfolder") &&
            boost::algorithm::iequals(text, "true"));
}

written_page read_page(std::string_view xml, page_names const& names)
{
    auto const root = names.root;
    written_page page;
    written_page::object object;
    xml_reader reader{xml};
    auto is_page = false;
    while (reader.next()) {
        auto path = reader.path();
        is_page = path == root;
        path.remove_prefix(path.starts_with(root) ? root.size() : path.size());
        if (path == names.object) {
            page.objects.push_back(std::exchange(object, {}));
        } else if (path == names.key) {
            object.key = reader.text();
            object.is_encoded = reader.attributes().find("Encoded=\"true\"") != std::string_view::npos;
        } else if (path == names.size)
            object.size = without_blanks(reader.text());
        else if (path == names.etag)
            object.etag = without_blanks(reader.text());
        else if (says_directory(path, without_blanks(reader.text())))
            object.is_directory = true;
        else if (path == "/IsTruncated")
            page.truncated = without_blanks(reader.text());
        else if (path == names.next)
            page.next = without_blanks(reader.text());
        else if (path == "/EncodingType")
            page.encoding = without_blanks(reader.text());
    }
    page.is_whole = is_page && reader.is_whole();
    return page;
}

std::optional<s3_object> object_of(written_page::object const& written, bool is_encoded, std::string_view bucket,
                                   store of)
{
    auto const size = number_in(written.size);
    if (written.key.empty() || !size)
        return std::nullopt;
    auto const name = is_encoded || written.is_encoded ? decoded(written.key, of != store::azure) : written.key;
    // Azure has quotes in the header only.
    auto const* const quotes = of == store::azure && !written.etag.starts_with('"') ? "\"" : "";
    return s3_object{.url = fmt::format("{}://{}/{}", scheme_of(of), bucket, name),
                     .size = *size,
                     .etag = fmt::format("{}{}{}", quotes, written.etag, quotes)};
}

// What is behind a code, where its message does not say it.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> advice{
    {{"AccessDenied",
      "check the identity (`aws sts get-caller-identity`) and that it has s3:GetObject there; without s3:ListBucket "
      "a missing key has this answer, too"},
     {"InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID, AWS_PROFILE and the endpoint"},
     {"SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY"},
     {"ExpiredToken", "get new credentials"},
     {"InvalidToken", "check AWS_SESSION_TOKEN"},
     {"RequestTimeTooSkewed", "set this machine's clock"}}};

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> advice_of_google{
    {{"AccessDenied",
      "check the identity and that it has storage.objects.get there, and storage.objects.list for lists"},
     {"AuthenticationRequired", "the token has expired or is wrong; get a new one"},
     {"SignatureDoesNotMatch", "check the secret of the HMAC key"},
     {"RequestTimeTooSkewed", "set this machine's clock"}}};

constexpr std::string_view no_identity =
    "without credentials only public containers are served: set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or "
    "pass a token or other credentials";
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> advice_of_azure{
    {{"BlobNotFound", "check the blob's name, also its capital letters"},
     {"ContainerNotFound", "check the names of account and container"},
     {"AuthenticationFailed", "check the account's key, or the SAS token and its end, and this machine's clock"},
     {"InvalidAuthenticationInfo", "the token has expired or is wrong; get a new one"},
     {"AuthorizationPermissionMismatch",
      "the identity needs the role Storage Blob Data Reader; a SAS token needs read, and list for lists"},
     {"AuthorizationFailure", "check the account's network rules, and that it permits this kind of credentials"},
     {"KeyBasedAuthenticationNotPermitted", "the account refuses its key: pass credentials of azure.identity"},
     {"NoAuthenticationInformation", no_identity},
     {"PublicAccessNotPermitted", no_identity},
     {"ResourceNotFound", no_identity}}};

}  // namespace

std::optional<listing_page> parse_listing(std::string_view xml, std::string_view bucket, std::string& why, store of)
{
    auto written = read_page(xml, of == store::azure ? names_of_azure : names_of_s3);
    // Some servers leave out what is false.
    auto const says_end = written.truncated.empty() || boost::algorithm::iequals(written.truncated, "false");
    if (!written.is_whole || (!says_end && !boost::algorithm::iequals(written.truncated, "true"))) {
        why = "its answer is not a page of a listing";
        return std::nullopt;
    }
    if (!says_end && written.next.empty()) {
        why = "its answer is not the last page, and lacks a continuation token";
        return std::nullopt;
    }
    listing_page page{.objects = {}, .next = {}};
    if (!says_end || written.truncated.empty())
        page.next = std::move(written.next);
    std::erase_if(written.objects, [](auto const& each) { return each.is_directory; });
    for (auto const& each : written.objects) {
        auto object = object_of(each, written.encoding == "url", bucket, of);
        if (!object) {
            why = fmt::format(R"(its answer has an object without key or size: key "{}", size "{}")",
                              each.key.substr(0, 200), each.size.substr(0, 200));
            return std::nullopt;
        }
        page.objects.push_back(std::move(*object));
    }
    return page;
}

std::optional<refusal> parse_refusal(std::string_view body, std::string const& code_of_header)
{
    refusal said;
    std::array<std::pair<std::string_view, std::string*>, 5> const fields{{{"/Error/Code", &said.code},
                                                                           {"/Error/Message", &said.message},
                                                                           {"/Error/Region", &said.region},
                                                                           {"/Error/RequestTime", &said.request_time},
                                                                           {"/Error/ServerTime", &said.server_time}}};
    for (xml_reader reader{body}; reader.next();) {
        for (auto const& [path, field] : fields) {
            if (reader.path().ends_with(path))
                *field = without_blanks(reader.text());
        }
    }
    if (said.code.empty())
        said.code = code_of_header;
    return said.code.empty() ? std::nullopt : std::optional{std::move(said)};
}

std::string words_of(refusal const& said, store of)
{
    auto words = said.message.empty() ? said.code : fmt::format("{}: {}", said.code, said.message);
    if (!said.server_time.empty())
        words += fmt::format(" The time is {} here, {} there", said.request_time, said.server_time);
    auto const add = [&](auto const& table) {
        for (auto const& [code, what] : table)
            if (code == said.code)
                words += fmt::format("; {}", what);
    };
    of == store::google ? add(advice_of_google) : of == store::azure ? add(advice_of_azure) : add(advice);
    return words;
}

bool is_temporary(refusal const& said) noexcept
{
    constexpr std::array<std::string_view, 4> codes{"Throttling", "ThrottlingException", "RequestLimitExceeded",
                                                    "IDPCommunicationError"};
    return std::ranges::find(codes, said.code) != codes.end();
}

bool is_about_expiry(refusal const& said) noexcept
{
    return said.code == "ExpiredToken" || said.code == "AuthenticationFailed";
}

}  // namespace gpurx::ingest::detail::s3
