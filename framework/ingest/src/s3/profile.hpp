// SPDX-License-Identifier: Apache-2.0
//
// What the environment and the profile files of AWS's own tools say about whom and where to ask. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "../net/environment.hpp"
#include "credentials.hpp"

namespace gpurx::ingest::detail::s3 {

// By section and name: names in lower case.
using profile_file = std::map<std::string, std::map<std::string, std::string>>;

// What is nested in another is named by both: "s3.addressing_style".
[[nodiscard]] profile_file parse_profiles(std::string_view text);

// Where the files are, in the user's home unless the environment says otherwise.
struct profile_paths {
    std::string credentials;
    std::string config;
};
[[nodiscard]] profile_paths paths_of(environment const& variable);

// Who hands out credentials that are not written down.
struct credential_service {
    enum class kind { container, instance };
    kind of = kind::instance;
    std::string url;            // of the document; of the service itself, for an instance
    std::string authorization;  // for the field of that name; empty: none
    std::string token_file;     // where it is to be read instead
};

struct setup {
    std::string profile;
    std::string region;    // empty: nobody says
    std::string endpoint;  // empty: AWS
    std::string style;     // s3.addressing_style; empty: nobody says
    std::optional<credentials> written;
    std::optional<credential_service> service;  // to be asked where none are written; empty: forbidden
    std::string obstacle;                       // why none are written, where a profile needs what is not done here
};
// In the order of AWS's tools: environment, the two files, container, instance. `profile`, if it is not empty, takes
// the place of AWS_PROFILE, and of credentials in the environment: the program has named it.
[[nodiscard]] setup set_up(environment const& variable, profile_file const& credentials_file,
                           profile_file const& config_file, std::string const& profile = {});

}  // namespace gpurx::ingest::detail::s3
