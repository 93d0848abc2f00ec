// SPDX-License-Identifier: Apache-2.0
//
// Objects of S3, s3://BUCKET/KEY: whom to ask for them and as whom, and which there are. gpurx/ingest/object.hpp
// loads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpurx::ingest {

// What is left empty comes from where AWS's own tools have it: the environment (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL,
// AWS_REGION, AWS_DEFAULT_REGION), then the profile (AWS_PROFILE) in ~/.aws/config.
//
// Credentials always do: from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), the
// profile in ~/.aws/credentials or ~/.aws/config, a container's agent, or the instance metadata service, version 2.
// Those that expire are renewed five minutes before.
struct s3_options {
    // A server's URL; the buckets are below it. Empty in the end: AWS.
    std::string endpoint{};
    // More servers with the same buckets, as the nodes of one store: each s3:// URL is on all of them, as if
    // fetch_options::mirrors had it once more for each. Who lists asks the next if the one before cannot be had.
    std::vector<std::string> more_endpoints{};
    // Empty in the end: us-east-1. If the bucket is in another the server says so, and is asked there.
    std::string region{};
    // Sign nothing, and look for no credentials: for buckets that everybody may read.
    bool anonymous = false;
    // In the place of AWS_PROFILE; and credentials are not looked for in the environment then, as it is named here.
    std::string profile{};

    // How a bucket is named to the server: in front of its host, BUCKET.HOST/KEY, or in the path,
    // HOST/BUCKET/KEY. automatic: as the profile's s3.addressing_style says; else AWS by host, others by path.
    // A name that cannot be part of a host's, as with capital letters, is in the path always.
    enum class addressing { automatic, path, virtual_host };
    addressing style = addressing::automatic;
};

// What async_list_s3 (gpurx/ingest/http.hpp) finds.
struct s3_object {
    std::string url;  // s3://BUCKET/KEY
    std::uint64_t size = 0;
    std::string etag;  // as the server wrote it, quotes included
};

}  // namespace gpurx::ingest
