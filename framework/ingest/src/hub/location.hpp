// SPDX-License-Identifier: Apache-2.0
//
// The location of a model of Hugging Face's hub, hf://ORG/MODEL@REVISION/FILE, its URLs, and commits in URLs. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <gpurx/error.hpp>

#include "../net/environment.hpp"

namespace gpurx::ingest::detail::hub {

struct location {
    std::string model;  // ORG/MODEL
    std::string revision = "main";
    std::string file;  // as is, not encoded; or a directory, with a slash at the end; empty: the whole model
};

[[nodiscard]] bool is_location(std::string_view text) noexcept;
// Returns whether the text names a model, or a directory of its files, with a slash at the end. Precondition:
// is_location(text).
[[nodiscard]] bool is_directory(std::string_view text);

// Parses a location. A slash of the revision is written as %2F, except in refs/pr/N and refs/convert/NAME. All text
// after the revision is the file, including "?", "#" and "%". Errors: errc::bad_url; why.advice has the reason.
[[nodiscard]] location parse_location(std::string_view text, error_code& code, diagnostics& why);

// Returns HF_ENDPOINT, or Hugging Face's own.
[[nodiscard]] std::string endpoint(environment const& variable);
// Returns the URL of the file, and of the description of the whole model.
[[nodiscard]] std::string url_of(location const& which, std::string_view endpoint);
[[nodiscard]] std::string description_url_of(location const& which, std::string_view endpoint);

// Returns the advice for a response that refuses; empty if there is none.
[[nodiscard]] std::string_view advice_for(unsigned status) noexcept;

// ---- commits ----

[[nodiscard]] bool is_commit(std::string_view text) noexcept;

// A location of the hub or a URL with a revision in its path, as in ORG/MODEL/resolve/REVISION/FILE.
struct versioned_url {
    std::string before;
    std::string revision;
    std::string behind;  // its slash and the file
};
// Empty if the URL has no revision.
[[nodiscard]] std::optional<versioned_url> take_apart(std::string_view url);

}  // namespace gpurx::ingest::detail::hub
