// SPDX-License-Identifier: Apache-2.0
//
// What others write and is read where S3 and Azure are concerned: listings, refusals, documents with credentials,
// profile files, and the locations that users name. What is believed of it agrees with itself.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "net/url.hpp"
#include "s3/credentials.hpp"
#include "s3/location.hpp"
#include "s3/response.hpp"

namespace {

using namespace gpurx::ingest::detail;

void check(bool holds)
{
    if (!holds)
        std::abort();
}

void read_documents(std::string_view text)
{
    std::string why;
    for (auto const of : {s3::store::aws, s3::store::azure}) {
        auto const page = s3::parse_listing(text, "bucket", why, of);
        check(page || !why.empty());
        why.clear();
    }
    auto const found = s3::parse_credentials(text, why);
    check(found ? s3::are_usable(*found) : !why.empty());
    why.clear();
    auto const role = s3::parse_assumed_role(text, why);
    check(role ? s3::are_usable(*role) : !why.empty());
    auto const said = s3::parse_refusal(text);
    check(!said || !s3::words_of(*said).empty());
    auto const nothing = [](std::string_view) { return std::string{}; };
    auto const file = s3::parse_profiles(text);
    auto const set_up = s3::set_up(nothing, file, file);
    check(!set_up.written || s3::are_usable(*set_up.written));
    if (auto const when = s3::parse_time(text))
        check(s3::basic_time(*when).size() == 16);
}

// Where an object is, is a URL that can be used, and has nothing of the key's in its header.
void read_location(std::string const& text, std::string const& endpoint)
{
    gpurx::error_code code;
    gpurx::diagnostics why;
    auto const object = s3::parse_location(text, code, why);
    if (code)
        return;
    auto const to = parse_url(s3::url_of(object, {.endpoint = endpoint, .region = {}}), code, why);
    check(!code && to.host == "host");
    check(to.target == "/" + object.bucket + "/" + s3::encoded(object.key, true));
    check(to.target.find_first_of(" \r\n?#") == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size)
{
    std::string_view const text{reinterpret_cast<char const*>(data), size};
    read_documents(text);
    read_location("s3://" + std::string{text}, "http://host");
    read_location("az://account/" + std::string{text}, "http://host/account");
    return 0;
}
