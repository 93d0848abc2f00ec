// SPDX-License-Identifier: Apache-2.0
//
// The location of an object of S3, s3://BUCKET/KEY, of Google Cloud Storage, gs://BUCKET/OBJECT, or of Azure Blob
// Storage, az://ACCOUNT/CONTAINER/BLOB, and the URLs for it. Google serves the same requests and lists as S3; azure.hpp
// has what Azure has of its own. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <gpurx/error.hpp>
#include <gpurx/ingest/s3.hpp>

#include "../net/environment.hpp"

namespace gpurx::ingest::detail::s3 {

enum class store { aws, google, azure };

// "s3", "gs" or "az".
[[nodiscard]] std::string_view scheme_of(store one) noexcept;

struct location {
    std::string bucket;  // of Azure: ACCOUNT/CONTAINER
    std::string key;     // as is, not encoded; or the beginning of keys
    store of = store::aws;
};

// The server: AWS in a region, or another at an endpoint.
struct service {
    std::string endpoint;  // an http or https URL; empty: AWS
    std::string region;
    s3_options::addressing style = s3_options::addressing::automatic;
};

// Returns the server of Google: at the endpoint, that of STORAGE_EMULATOR_HOST, or Google's own.
[[nodiscard]] service google_service(s3_options const& options, environment const& variable);

// Returns whether the text can be a region. It becomes part of a host name.
[[nodiscard]] bool is_region(std::string_view text) noexcept;
// Returns the URL of one of AWS's services. It lacks the region if the text cannot be one.
[[nodiscard]] std::string aws_url(std::string_view service, std::string_view region);
// Throws gpurx::system_error, errc::bad_url, for an invalid endpoint or region. Empty ones are not set, and valid.
void check(service const& at);

[[nodiscard]] bool is_location(std::string_view text) noexcept;
// Returns whether the text is a prefix of keys, which S3 has in place of directories: s3://BUCKET, or with a slash at
// the end. Of Azure: az://ACCOUNT/CONTAINER.
[[nodiscard]] bool is_prefix(std::string_view text) noexcept;

// Parses a location. All text after the bucket is the key, including "?", "#" and "%". Errors: errc::bad_url;
// why.advice has the reason.
[[nodiscard]] location parse_location(std::string_view text, error_code& code, diagnostics& why);

// Returns whether objects of both may have the same credentials: both are of S3, of Google, or of an account of Azure.
[[nodiscard]] bool shares_secrets(std::string_view text, std::string_view other) noexcept;

// Parses a profile's value: "path", "virtual" or "auto". Empty if it is none of them.
[[nodiscard]] std::optional<s3_options::addressing> addressing_named(std::string_view text) noexcept;

// Returns the object's URL. Automatic addressing uses the bucket's own host name for AWS, unless the bucket's name has
// dots, which no certificate matches. For other servers it uses a path that begins with the bucket.
[[nodiscard]] std::string url_of(location const& object, service const& at);
// Returns the bucket's URL, with these parameters. Names and values are not encoded.
using parameters = std::span<std::pair<std::string, std::string> const>;
[[nodiscard]] std::string url_of(std::string_view bucket, parameters query, service const& at);

// Returns whether the host is S3 of AWS. Other hosts of amazonaws.com, such as customers' machines, are not.
[[nodiscard]] bool is_aws(std::string_view host) noexcept;

// Percent-encodes all bytes except letters, digits and -._~, as in %20.
[[nodiscard]] std::string encoded(std::string_view text, bool keeps_slashes);
[[nodiscard]] std::string query_text(parameters query);
// Decodes %20, and "+" too if it is a blank. A '%' without its two digits stays.
[[nodiscard]] std::string decoded(std::string_view text, bool plus_is_blank);

}  // namespace gpurx::ingest::detail::s3
