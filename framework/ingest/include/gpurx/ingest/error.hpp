// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Error codes of the ingest library.
///
/// The library throws them as gpurx::system_error. The diagnostics tell the operation, the object or sender, and what
/// to change.
#pragma once

#include <gpurx/error.hpp>

namespace gpurx::ingest {

/// @brief Errors of the ingest library itself.
enum class errc {
    // ---- HTTP ----
    /// @brief The text is no URL of http, https or s3, or the URL cannot be used.
    bad_url = 1,
    /// @brief The answer is not HTTP/1.1, or its header is larger than 16 KiB.
    bad_response,
    /// @brief The server answered with a status that is no success.
    /// @details The diagnostics have the status and the beginning of the answer's body.
    http_status,
    /// @brief The server redirected more than 10 times, or to a URL that cannot be used.
    bad_redirect,
    /// @brief The answer has no length, as with `Transfer-Encoding: chunked`, so its bytes have no known place.
    unknown_size,
    /// @brief The answer has other bytes than the requested ones.
    wrong_range,
    /// @brief The object has changed since the download began: its ETag, date or size is another.
    object_changed,
    /// @brief The server is slower than fetch_options allow, or every attempt ended early.
    /// @details The options are `timeout`, `min_speed` and `deadline`.
    gave_up,
    /// @brief The bytes do not have the announced checksum.
    wrong_checksum,

    // ---- safetensors ----
    /// @brief The header breaks the format. The diagnostics tell the mistake and the tensor.
    bad_safetensors,

    // ---- streams of tensors ----
    /// @brief A sender sent bytes that are no frame of this version. The diagnostics tell the mistake.
    bad_frame,
    /// @brief A sender's connection ended before its last frame, and the sender did not reconnect in time.
    stream_cut,
    /// @brief A sender has the number of another sender, or a number outside this stream.
    /// @details The source continues with the sender that it had.
    wrong_source,

    // ---- S3 ----
    /// @brief There are no credentials for S3, or the service that issues them did not.
    no_credentials,

    // ---- TLS ----
    /// @brief TLS with the server failed, or a file of tls_options cannot be used.
    /// @details The server's certificate is not valid for the URL, the server breaks the protocol, or it rejects the
    /// client's certificate. The diagnostics have OpenSSL's text.
    tls_failure,

    // ---- streams of tensors: authentication ----
    /// @brief A sender does not know the stream's secret, or speaks the protocol's version 1, which has no secret.
    wrong_secret,
    /// @brief All sources have ended an epoch, and the next batch belongs to the next one. This is no failure.
    epoch_ended,
    // ---- mirrors ----
    /// @brief The URLs of an object have different content. The diagnostics tell the difference.
    mirrors_differ,
};

/// @brief Returns the category of errc.
[[nodiscard]] boost::system::error_category const& ingest_category() noexcept;
/// @brief Makes an error_code of ingest_category().
[[nodiscard]] error_code make_error_code(errc value) noexcept;

}  // namespace gpurx::ingest

/// @cond
template <>
struct boost::system::is_error_code_enum<gpurx::ingest::errc> : std::true_type {};
/// @endcond
