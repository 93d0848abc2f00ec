// SPDX-License-Identifier: Apache-2.0
//
// What the ingest library decides by itself. It is thrown as gpurx::system_error, with diagnostics that say what was
// being done, with which object or sender, and what to change.
#pragma once

#include <gpurx/error.hpp>

namespace gpurx::ingest {

enum class errc {
    // ---- HTTP ----
    // Not a URL of http, https or s3, or one that cannot be used.
    bad_url = 1,
    // The answer is not HTTP/1.1, or its header is larger than 16 KiB.
    bad_response,
    // The server answered with a status that is no success; the text has it, with the beginning of its body.
    http_status,
    // More than 10 redirects, or one to a place that cannot be used.
    bad_redirect,
    // The answer has no length, as with Transfer-Encoding: chunked. Nobody could say where its bytes belong.
    unknown_size,
    // The answer has other bytes than those that were asked for.
    wrong_range,
    // The object is not the one that the download began with: its ETag, date or size is another.
    object_changed,
    // The server is slower than fetch_options::timeout, min_speed or deadline allow, or every attempt ended early.
    gave_up,
    // The bytes are not those that the checksum was made of.
    wrong_checksum,

    // ---- safetensors ----
    // The header is none that the format allows; the text says what is wrong, and with which tensor.
    bad_safetensors,

    // ---- streams of tensors ----
    // What a sender sent is no frame of this version; the text says what is wrong.
    bad_frame,
    // A sender's connection ended before its last frame, and did not come back in time.
    stream_cut,
    // A sender's number is another sender's, or none of this stream's. The source goes on, with the sender that it had.
    wrong_source,

    // ---- S3 ----
    // There are no credentials for S3, or who hands them out did not.
    no_credentials,

    // ---- TLS ----
    // The server is not who it should be, does not speak TLS as it should, or does not take who asks; or a file of
    // tls_options cannot be used. The text has OpenSSL's words.
    tls_failure,

    // ---- streams of tensors: who is let in ----
    // A sender does not know the stream's secret, or speaks the protocol's version 1, which has none.
    wrong_secret,
    // No failure: all sources have ended an epoch, and the next batch is one of the next.
    epoch_ended,
    // ---- mirrors ----
    // The URLs of an object do not have the same; the text says what differs.
    mirrors_differ,
};

[[nodiscard]] boost::system::error_category const& ingest_category() noexcept;
[[nodiscard]] error_code make_error_code(errc value) noexcept;

}  // namespace gpurx::ingest

/// @cond
template <>
struct boost::system::is_error_code_enum<gpurx::ingest::errc> : std::true_type {};
/// @endcond
