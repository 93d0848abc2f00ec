// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Objects of S3, `s3://BUCKET/KEY`: servers, credentials and lists.
///
/// gpurx/ingest/object.hpp loads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpurx::ingest {

/// @brief Options of S3.
///
/// The library fills empty options as AWS's own tools do. It takes them from the environment (`AWS_ENDPOINT_URL_S3`,
/// `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_DEFAULT_REGION`), then from the profile (`AWS_PROFILE`) in `~/.aws/config`.
///
/// Credentials never stand in the options. The library takes them from the first of these:
/// - the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`;
/// - the profile, in `~/.aws/credentials` or `~/.aws/config`;
/// - a container's agent;
/// - the instance metadata service, version 2.
///
/// The library renews credentials that expire five minutes before.
struct s3_options {
    /// @brief URL of a server that has the buckets below it. If the environment and the profile have none either: AWS.
    std::string endpoint{};
    /// @brief More servers with the same buckets, such as the nodes of one store.
    ///
    /// Each s3:// URL is on all of them, as if fetch_options::mirrors had it once more for each. A list asks the next
    /// server if the one before cannot be reached.
    std::vector<std::string> more_endpoints{};
    /// @brief Region of the bucket. If the environment and the profile have none either: us-east-1.
    ///
    /// If the bucket is in another region, the server answers with it, and the library asks there.
    std::string region{};
    /// @brief Whether requests are unsigned, without a search for credentials. Use it for public buckets.
    bool anonymous = false;
    /// @brief Profile, in the place of `AWS_PROFILE`. The library then takes no credentials from the environment.
    std::string profile{};

    /// @brief Place of a bucket's name in requests.
    ///
    /// A name that cannot be part of a host name, such as one with capital letters, is always in the path.
    enum class addressing {
        automatic,    ///< As the profile's `s3.addressing_style` says. Otherwise AWS by host, other servers by path.
        path,         ///< In the path: `HOST/BUCKET/KEY`.
        virtual_host  ///< In front of the host: `BUCKET.HOST/KEY`.
    };
    addressing style = addressing::automatic;  ///< Place of a bucket's name in requests.
};

/// @brief An object that async_list_s3() found (gpurx/ingest/http.hpp).
struct s3_object {
    std::string url;         ///< URL: `s3://BUCKET/KEY`.
    std::uint64_t size = 0;  ///< Size in bytes.
    std::string etag;        ///< ETag as the server wrote it, with its quotes.
};

}  // namespace gpurx::ingest
