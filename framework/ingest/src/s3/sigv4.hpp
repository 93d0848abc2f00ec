// SPDX-License-Identifier: Apache-2.0
//
// AWS Signature Version 4, as S3 takes it in the header of a request. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "../net/message.hpp"
#include "credentials.hpp"

namespace gpurx::ingest::detail::s3 {

// Of a request without a body: the SHA-256 of nothing.
inline constexpr std::string_view empty_payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
// The signature is not to cover the body.
inline constexpr std::string_view unsigned_payload = "UNSIGNED-PAYLOAD";

// What a signature covers.
struct signed_request {
    std::string_view method;
    // As in the request line. S3 signs the path as it is written: not encoded a second time, nothing taken out of it.
    std::string_view target;
    // All that is to be signed: Host and each that begins with x-amz- have to be among them.
    std::span<header_field const> fields;
    std::string_view payload_hash;
};

// The value of the field Authorization. `time`: as x-amz-date has it.
[[nodiscard]] std::string authorization(signed_request const& request, credentials const& by, std::string_view region,
                                        std::string_view time);

// The fields that make a request one of `by`: those of S3's own, and Authorization over them and `fields`.
[[nodiscard]] header_fields signature_fields(signed_request const& request, credentials const& by,
                                             std::string_view region, time_point now);

}  // namespace gpurx::ingest::detail::s3
