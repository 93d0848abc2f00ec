// SPDX-License-Identifier: Apache-2.0
//
// What the ingest library decides by itself. It is thrown as gpurx::system_error, with diagnostics that say what was
// being done, with which object or sender, and what to change.
#pragma once

#include <gpurx/error.hpp>

namespace gpurx::ingest {

enum class errc {
    // ---- HTTP ----
    // Not an http:// URL, or one that cannot be used: https is not possible, as payload has to be
    // readable where it lands.
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
    // Nothing came for http_options::timeout, or every attempt ended early.
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
};

[[nodiscard]] boost::system::error_category const& ingest_category() noexcept;
[[nodiscard]] error_code make_error_code(errc value) noexcept;

}  // namespace gpurx::ingest

template <>
struct boost::system::is_error_code_enum<gpurx::ingest::errc> : std::true_type {};
