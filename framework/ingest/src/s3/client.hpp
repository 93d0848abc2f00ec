// SPDX-License-Identifier: Apache-2.0
//
// The S3 client of a download or a listing. It gets and renews credentials, finds the bucket's region, and signs
// requests.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <gpurx/ingest/s3.hpp>
#include <gpurx/ingest/tls.hpp>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../net/message.hpp"
#include "../net/url.hpp"
#include "credentials.hpp"
#include "location.hpp"

namespace gpurx::ingest::detail::s3 {

// Returns the options of each server that has the buckets.
[[nodiscard]] std::vector<s3_options> servers_of(s3_options const& options);

// Safe from any thread after async_start() has completed.
class client {
  public:
    client(s3_options options, tls_options tls) : options_{std::move(options)}, tls_{std::move(tls)} {}

    // Reads the configuration and gets credentials, with several attempts until the deadline. Call it once. Errors:
    // errc::no_credentials, bad_url.
    [[nodiscard]] asio::awaitable<void> async_start(std::chrono::steady_clock::time_point deadline);
    // Gets new credentials if the present ones expire soon. A failure is an error only if they have expired.
    [[nodiscard]] asio::awaitable<void> async_renew(std::chrono::steady_clock::time_point deadline);

    // Returns the URL of an object, or of a bucket. Errors: errc::bad_url for an unusable endpoint.
    [[nodiscard]] url where(location const& object);
    [[nodiscard]] url where(std::string_view bucket, parameters query);

    // Returns the fields to add to a request with `fields`. Returns none if requests are anonymous. Returns none too if
    // a redirect has led to another server than that of where(), unless both are AWS's: no other server may get a
    // session token.
    [[nodiscard]] header_fields sign(std::string_view method, url const& to, header_fields const& fields) const;

    // For callers that send their own requests, once async_start() has completed.
    [[nodiscard]] tls_options const& tls() const noexcept { return tls_; }

    // Records the bucket's region as the server states it. Returns false if the server did so before, or if the region
    // is not new.
    [[nodiscard]] bool move_to(std::string_view region);
    // Records that the server refuses the credentials as expired: async_renew() then gets others. Returns false if this
    // is known, or if no others are available.
    [[nodiscard]] bool end_credentials();

  private:
    [[nodiscard]] bool is_trusted(url const& to) const;
    [[nodiscard]] bool ends_within(std::chrono::seconds time) const;

    s3_options options_;
    tls_options tls_;
    bool started_ = false;
    std::optional<credential_service> source_;  // of credentials that expire

    mutable std::mutex mutex_;
    service at_;
    std::string home_;  // authority of the last where()
    bool moved_ = false;
    bool ended_ = false;
    bool renewing_ = false;
    std::optional<credentials> by_;
};

}  // namespace gpurx::ingest::detail::s3
