// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Objects of S3, `s3://BUCKET/KEY`, of Google Cloud Storage, `gs://BUCKET/OBJECT`, and of Azure Blob Storage,
/// `az://ACCOUNT/CONTAINER/BLOB`.
///
/// The class object loads them (gpurx/ingest/object.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpurx::ingest {

/// @brief Options of S3.
///
/// If an option is empty, the library finds its value as AWS's own tools do. It takes the first of:
/// - the environment: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_DEFAULT_REGION`;
/// - the profile (`AWS_PROFILE`) in `~/.aws/config`.
///
/// The options never contain credentials. The library takes credentials from the first of these:
/// - the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`;
/// - a role by a web identity: `AWS_ROLE_ARN`, `AWS_WEB_IDENTITY_TOKEN_FILE`, `AWS_ROLE_SESSION_NAME`, or the profile;
/// - the profile: keys in `~/.aws/credentials`, the program of `credential_process`, or keys in `~/.aws/config`;
/// - a container's agent;
/// - the instance metadata service, version 2.
///
/// If credentials expire, the library renews them five minutes earlier.
///
/// For gs:// URLs, the library speaks Google's XML API. The server is `endpoint`, or `STORAGE_EMULATOR_HOST`, or
/// Google's own. The first of these that is set authenticates: fetch_options::credentials, HMAC keys of `profile`,
/// fetch_options::bearer, fetch_options::fallback_credentials. Otherwise requests are unsigned. Nothing else of the
/// environment applies.
///
/// For az:// URLs, the server is `endpoint`, `AZURE_STORAGE_BLOB_ENDPOINT`, the one of
/// `AZURE_STORAGE_CONNECTION_STRING`, or the account's own. If neither the host nor the end of the path of the first
/// two is the account's name, the library adds the name to the path. The first of these that is set authenticates:
/// fetch_options::credentials with header fields, fetch_options::bearer, `AZURE_STORAGE_SAS_TOKEN`,
/// `AZURE_STORAGE_KEY`, fetch_options::fallback_credentials. Otherwise requests are anonymous. The connection string
/// stands in for a token or a key that is not set. If `AZURE_STORAGE_ACCOUNT` or the string names another account, its
/// secrets do not apply. If nothing names an account, mirrors in another account do not get them. `region`, `profile`
/// and `style` do not apply.
struct s3_options {
    /// @brief URL of the server. The buckets are below it.
    ///
    /// If the environment and the profile have none either, the server is AWS.
    std::string endpoint{};
    /// @brief More servers with the same buckets, such as the nodes of one store.
    ///
    /// Each s3:// URL is on all of them, as if fetch_options::mirrors contained it once more for each. async_list_s3()
    /// asks the next server if it cannot reach the previous one.
    std::vector<std::string> more_endpoints{};
    /// @brief Region of the bucket.
    ///
    /// If the environment and the profile have none either, the region is us-east-1.
    ///
    /// If the bucket is in another region, the server reports that region, and the library asks there.
    std::string region{};
    /// @brief Whether requests are unsigned. Use it for public buckets.
    ///
    /// The library then does not search for credentials.
    bool anonymous = false;
    /// @brief Profile to use instead of `AWS_PROFILE`.
    ///
    /// If set, the library takes no credentials from the environment.
    std::string profile{};

    /// @brief Place of a bucket's name in requests.
    ///
    /// If a name cannot be part of a host name, as with capital letters, it is always in the path.
    enum class addressing {
        automatic,    ///< As the profile's `s3.addressing_style` says. Otherwise AWS by host, other servers by path.
        path,         ///< In the path: `HOST/BUCKET/KEY`.
        virtual_host  ///< In front of the host: `BUCKET.HOST/KEY`.
    };
    addressing style = addressing::automatic;  ///< Place of a bucket's name in requests.
};

/// @brief An object that async_list_s3() found (gpurx/ingest/http.hpp).
struct s3_object {
    std::string url;         ///< URL: `s3://BUCKET/KEY`, `gs://BUCKET/OBJECT` or `az://ACCOUNT/CONTAINER/BLOB`.
    std::uint64_t size = 0;  ///< Size in bytes.
    std::string etag;        ///< ETag as the server wrote it, with its quotes.
};

}  // namespace gpurx::ingest
