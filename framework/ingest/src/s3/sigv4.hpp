// SPDX-License-Identifier: Apache-2.0
//
// AWS Signature Version 4, in the form that S3 accepts in the header of a request. Pure.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "../net/message.hpp"
#include "credentials.hpp"

namespace gpurx::ingest::detail::s3 {

using digest = std::array<unsigned char, 32>;
// HMAC with SHA-256.
[[nodiscard]] digest hmac(std::string_view key, std::string_view text);
[[nodiscard]] std::string_view view_of(digest const& bytes) noexcept;

// For a request without a body: the SHA-256 of no bytes.
inline constexpr std::string_view empty_payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
// For a signature that does not cover the body.
inline constexpr std::string_view unsigned_payload = "UNSIGNED-PAYLOAD";

// Input of a signature.
struct signed_request {
    std::string_view method;
    // As in the request line. S3 signs the path as is: not encoded a second time, and not normalized.
    std::string_view target;
    // All fields to sign. They must include Host and each field that begins with x-amz-.
    std::span<header_field const> fields;
    std::string_view payload_hash;
};

// Returns the value of the field Authorization. `time`: in the form of x-amz-date.
[[nodiscard]] std::string authorization(signed_request const& request, credentials const& by, std::string_view region,
                                        std::string_view time);

// Returns the fields that authenticate a request as `by`: S3's own fields, and Authorization over them and `fields`.
[[nodiscard]] header_fields signature_fields(signed_request const& request, credentials const& by,
                                             std::string_view region, time_point now);

}  // namespace gpurx::ingest::detail::s3
