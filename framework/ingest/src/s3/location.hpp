// SPDX-License-Identifier: Apache-2.0
//
// The location of an object of S3, s3://BUCKET/KEY, and the URLs for it. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <gpurx/error.hpp>
#include <gpurx/ingest/s3.hpp>

namespace gpurx::ingest::detail::s3 {

struct location {
    std::string bucket;
    std::string key;  // as it is, not encoded; or the beginning of keys
};

// Who serves: AWS in a region, or a server at an endpoint.
struct service {
    std::string endpoint;  // an http or https URL; empty: AWS
    std::string region;
    s3_options::addressing style = s3_options::addressing::automatic;
};

// It becomes part of a host's name.
[[nodiscard]] bool is_region(std::string_view text) noexcept;
// Throws gpurx::system_error, errc::bad_url, for what can be neither. What is empty says nothing.
void check(service const& at);

[[nodiscard]] bool is_location(std::string_view text) noexcept;
// Of keys: what a directory is elsewhere. s3://BUCKET, or it ends with a slash.
[[nodiscard]] bool is_prefix(std::string_view text) noexcept;

// All behind the bucket is the key: "?", "#" and "%" are characters of it. Errors: errc::bad_url, and why.advice says
// what is wrong.
[[nodiscard]] location parse_location(std::string_view text, error_code& code, diagnostics& why);

// What a profile says of it: "path", "virtual" or "auto". Empty: it is none of them.
[[nodiscard]] std::optional<s3_options::addressing> addressing_named(std::string_view text) noexcept;

// Of the object. Automatic: AWS is asked by the bucket's own host name, unless dots in it stand against a certificate;
// others are asked for a path that begins with the bucket.
[[nodiscard]] std::string url_of(location const& object, service const& at);
// Of the bucket, with these parameters: names and values as they are.
using parameters = std::span<std::pair<std::string, std::string> const>;
[[nodiscard]] std::string url_of(std::string_view bucket, parameters query, service const& at);

// Whether that host is S3's at AWS, and no other's of amazonaws.com: customers' machines are there, too.
[[nodiscard]] bool is_aws(std::string_view host) noexcept;

// What is not a letter, a digit or one of -._~ is written as %20.
[[nodiscard]] std::string encoded(std::string_view text, bool keeps_slashes);
[[nodiscard]] std::string query_text(parameters query);

}  // namespace gpurx::ingest::detail::s3
