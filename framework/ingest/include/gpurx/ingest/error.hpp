// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Error codes of the ingest library.
///
/// The library throws them as gpurx::system_error. The diagnostics have the operation, the object or sender, and
/// advice.
#pragma once

#include <gpurx/error.hpp>

namespace gpurx::ingest {

/// @brief Errors of the ingest library itself.
enum class errc {
    // ---- HTTP ----
    /// @brief The text is not a usable URL of http, https, s3, gs or hf.
    bad_url = 1,
    /// @brief The response is not HTTP/1.1, or its header is larger than 16 KiB.
    bad_response,
    /// @brief The server responded with a status that is not a success.
    /// @details The diagnostics have the status and the beginning of the response's body.
    http_status,
    /// @brief The server redirected more than 10 times, or to an unusable URL.
    bad_redirect,
    /// @brief The response has no length, as with `Transfer-Encoding: chunked`.
    /// @details The places of its bytes are then unknown.
    unknown_size,
    /// @brief The response has other bytes than the request.
    wrong_range,
    /// @brief The object's ETag, date or size has changed since the download began.
    object_changed,
    /// @brief The server is slower than fetch_options allow, or every attempt ended early.
    /// @details The options are `timeout`, `min_speed` and `deadline`.
    gave_up,
    /// @brief The bytes do not match the announced checksum.
    wrong_checksum,

    // ---- safetensors ----
    /// @brief The header violates the format.
    /// @details The diagnostics name the mistake and the tensor.
    bad_safetensors,

    // ---- streams of tensors ----
    /// @brief A sender sent bytes that are not a frame of this version.
    /// @details The diagnostics name the mistake.
    bad_frame,
    /// @brief A sender disconnected before its last frame and did not reconnect in time.
    stream_cut,
    /// @brief A sender has another sender's number, or a number outside the stream.
    /// @details The source continues with its previous sender.
    wrong_source,

    // ---- S3 ----
    /// @brief S3 credentials are missing, or the service that issues them failed.
    no_credentials,

    // ---- TLS ----
    /// @brief TLS with the server failed, or a file of tls_options is unusable.
    /// @details The server's certificate is not valid for the URL, the server breaks the protocol, or it rejects the
    /// client's certificate. The diagnostics have OpenSSL's text.
    tls_failure,

    // ---- streams of tensors: authentication ----
    /// @brief A sender does not know the stream's secret.
    /// @details A sender that speaks version 1 of the protocol fails with this error too: version 1 has no secret.
    wrong_secret,
    /// @brief All sources have ended an epoch. This is not a failure.
    /// @details The next batch belongs to the next epoch.
    epoch_ended,
    // ---- mirrors ----
    /// @brief The URLs of an object have different content.
    /// @details The diagnostics name the difference.
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
