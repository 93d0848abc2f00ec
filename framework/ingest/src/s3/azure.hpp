// SPDX-License-Identifier: Apache-2.0
//
// Azure Blob Storage, where it differs from S3: the server of an account, secrets of the environment, and the fields of
// requests with Shared Key signatures. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "../net/environment.hpp"
#include "credentials.hpp"
#include "location.hpp"
#include "sigv4.hpp"

namespace gpurx::ingest::detail::s3 {

struct azure_setup {
    service at;       // the endpoint includes the account
    std::string sas;  // shared access signature, as a query; empty: none
    std::string key;  // of the account, in base64; empty: none
};
// Returns the server of the account, and its secrets from the environment. AZURE_STORAGE_ACCOUNT names the account of
// AZURE_STORAGE_SAS_TOKEN and AZURE_STORAGE_KEY. If it is not set, they are for the account if `may_know`. A connection
// string names its own account.
[[nodiscard]] azure_setup azure_set_up(s3_options const& options, environment const& variable, std::string_view account,
                                       bool may_know);

// Returns credentials for Shared Key signatures. Empty if the key is not base64.
[[nodiscard]] std::optional<credentials> shared_key(std::string_view account, std::string_view key);

// Returns the fields of a request: the version of the service, and those that authenticate it, if anything does.
[[nodiscard]] header_fields azure_fields(signed_request const& request, std::optional<credentials> const& by,
                                         time_point now);

}  // namespace gpurx::ingest::detail::s3
