// SPDX-License-Identifier: Apache-2.0
//
// Credentials for S3, from the environment, the profile files of AWS's own tools, and the documents of a program, a
// container's agent or the instance metadata service. Pure.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../net/environment.hpp"

namespace gpurx::ingest::detail::s3 {

using time_point = std::chrono::sys_seconds;

struct credentials {
    std::string access_key;
    std::string secret_key;
    std::string session_token;  // empty: there is none
    std::optional<time_point> expires;
    header_fields fields = {};  // sent instead of a signature, if there are any
};

// Parses {"AccessKeyId": …, "SecretAccessKey": …, "Token": …, "Expiration": …}. Programs write "SessionToken" instead,
// and "Version": 1. If the result is empty, `why` has the reason, without secrets.
[[nodiscard]] std::optional<credentials> parse_credentials(std::string_view json, std::string& why);

// Parses the answer of STS to AssumeRoleWithWebIdentity. If the result is empty, `why` has the reason, without secrets.
[[nodiscard]] std::optional<credentials> parse_assumed_role(std::string_view xml, std::string& why);

// Returns whether no key is missing, and all that is sent is valid in a header.
[[nodiscard]] bool are_usable(credentials const& found) noexcept;

// Parses "2026-11-23T10:00:00Z", also with a fraction of a second.
[[nodiscard]] std::optional<time_point> parse_time(std::string_view text) noexcept;
// "20261123T100000Z"
[[nodiscard]] std::string basic_time(time_point when);

// By section and name: names in lower case.
using profile_file = std::map<std::string, std::map<std::string, std::string>>;

// A nested name includes its parent: "s3.addressing_style".
[[nodiscard]] profile_file parse_profiles(std::string_view text);

// Paths of the files, in the user's home unless the environment sets others.
struct profile_paths {
    std::string credentials;
    std::string config;
};
[[nodiscard]] profile_paths paths_of(environment const& variable);

// Splits a command as a shell does, but expands nothing: blanks separate words, and quotes and backslashes protect
// them. Empty if it has no word, or a quote without an end.
[[nodiscard]] std::vector<std::string> words_in(std::string_view command);

// A service or a program that hands out credentials.
struct credential_service {
    enum class kind { program, container, instance, web_identity };
    kind of = kind::instance;
    // Of the document; of the service itself, for an instance and for STS; the command of a program.
    std::string url;
    std::string authorization = {};  // for the field of that name; empty: none
    std::string token_file = {};     // file with the authorization, read instead; or with the web identity
    std::string role = {};           // of a web identity: its ARN
    std::string session_name = {};   // likewise
    std::string ca_file = {};        // likewise; empty: the system's authorities
};

struct setup {
    std::string profile;
    std::string region;     // empty: not set
    std::string endpoint;   // empty: AWS
    std::string style;      // s3.addressing_style; empty: not set
    std::string ca_bundle;  // file of the trusted authorities; empty: the system's
    std::optional<credentials> written;
    std::optional<credential_service> service;  // used if none are written; empty: forbidden
    std::string obstacle;                       // reason if none are written: a profile needs an unsupported feature
};
// Returns the configuration in the order of AWS's tools: environment, web identity, the two files, a program,
// container, instance. Another identity never stands in for one that is set and unsupported: that is an obstacle. If
// `profile` is not empty, it overrides AWS_PROFILE and credentials in the environment, because the program has set it.
[[nodiscard]] setup set_up(environment const& variable, profile_file const& credentials_file,
                           profile_file const& config_file, std::string const& profile = {});

}  // namespace gpurx::ingest::detail::s3
