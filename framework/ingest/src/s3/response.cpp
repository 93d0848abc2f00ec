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

// "%20" and "+" as characters. A '%' without its two digits is one.
std::string decoded(std::string_view text)
{
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
        auto const digits = text.substr(i + 1, 2);
        unsigned value = 0;
        auto const* const end = digits.data() + digits.size();
        auto const [stopped, error] = std::from_chars(digits.data(), end, value, 16);
        auto const is_encoded = text[i] == '%' && digits.size() == 2 && error == std::errc{} && stopped == end;
        result += is_encoded ? static_cast<char>(value) : text[i] == '+' ? ' ' : text[i];
        i += is_encoded ? 2 : 0;
    }
    return result;
}

// A page as it is written: how its keys are encoded may stand behind them.
struct written_page {
    struct object {
        std::string key, size, etag;
    };
    std::vector<object> objects;
    std::string truncated, next, encoding;
    bool is_whole = false;
};

written_page read_page(std::string_view xml)
{
    constexpr std::string_view root = "/ListBucketResult";
    written_page page;
    written_page::object object;
    xml_reader reader{xml};
    auto is_page = false;
    while (reader.next()) {
        auto path = reader.path();
        is_page = path == root;
        path.remove_prefix(path.starts_with(root) ? root.size() : path.size());
        if (path == "/Contents")
            page.objects.push_back(std::exchange(object, {}));
        else if (path == "/Contents/Key")
            object.key = reader.text();
        else if (path == "/Contents/Size")
            object.size = without_blanks(reader.text());
        else if (path == "/Contents/ETag")
            object.etag = without_blanks(reader.text());
        else if (path == "/IsTruncated")
            page.truncated = without_blanks(reader.text());
        else if (path == "/NextContinuationToken")
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
    auto const name = is_encoded ? decoded(written.key) : written.key;
    return s3_object{
        .url = fmt::format("{}://{}/{}", scheme_of(of), bucket, name), .size = *size, .etag = written.etag};
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

}  // namespace

std::optional<listing_page> parse_listing(std::string_view xml, std::string_view bucket, std::string& why, store of)
{
    auto written = read_page(xml);
    // Some servers leave out what is false.
    auto const says_end = written.truncated.empty() || boost::algorithm::iequals(written.truncated, "false");
    if (!written.is_whole || (!says_end && !boost::algorithm::iequals(written.truncated, "true"))) {
        why = "its answer is not a page of ListObjectsV2";
        return std::nullopt;
    }
    if (!says_end && written.next.empty()) {
        why = "its answer is not the last page, and lacks a continuation token";
        return std::nullopt;
    }
    listing_page page{.objects = {}, .next = {}};
    if (!says_end || written.truncated.empty())
        page.next = std::move(written.next);
    for (auto const& each : written.objects) {
        auto object = object_of(each, written.encoding == "url", bucket, of);
        if (!object) {
            why = fmt::format("its answer has an object without key or size: key \"{}\", size \"{}\"",
                              each.key.substr(0, 200), each.size.substr(0, 200));
            return std::nullopt;
        }
        page.objects.push_back(std::move(*object));
    }
    return page;
}

std::optional<refusal> parse_refusal(std::string_view body)
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
    of == store::google ? add(advice_of_google) : add(advice);
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
    return said.code == "ExpiredToken";
}

}  // namespace gpurx::ingest::detail::s3
