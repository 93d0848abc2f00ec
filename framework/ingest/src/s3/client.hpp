// SPDX-License-Identifier: Apache-2.0
//
// The client of a download or a listing, for S3 and the other stores. It gets and renews credentials, finds the
// bucket's region, and signs requests.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <gpurx/ingest/http.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../net/message.hpp"
#include "../net/url.hpp"
#include "azure.hpp"
#include "credentials.hpp"
#include "location.hpp"

namespace gpurx::ingest::detail::s3 {

// Returns the options of each server that has the buckets.
[[nodiscard]] std::vector<s3_options> servers_of(s3_options const& options);

// Safe from any thread after async_start() has completed.
class client {
  public:
    // `server`: one of servers_of(). `object`: of its bucket. Without `may_know`, it gets neither
    // fetch_options::credentials nor bearer.
    client(s3_options server, fetch_options const& options, location const& object, bool may_know = true)
        : options_{std::move(server)},
          tls_{options.tls},
          of_{object.of},
          account_{object.bucket.substr(0, object.bucket.find('/'))},
          may_know_{may_know},
          bearer_{may_know ? options.bearer : std::string{}},
          given_{may_know ? options.credentials : nullptr},
          fallback_{options.fallback_credentials}
    {}

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
    // Gets credentials as AWS's tools do. Errors: errc::no_credentials.
    [[nodiscard]] asio::awaitable<void> async_find(setup const& found, std::chrono::steady_clock::time_point deadline);
    // For Google and Azure, which have public objects too: it may find none. Errors: errc::no_credentials.
    [[nodiscard]] asio::awaitable<void> async_find_optional(azure_setup const& azure);
    // Gets them from the function of last resort. Throws the failure if it has none, with its own failure.
    [[nodiscard]] asio::awaitable<void> async_fall_back(system_error const& failure);
    // Gets credentials from the program's function. Returns false if it has none.
    [[nodiscard]] asio::awaitable<bool> async_take(std::shared_ptr<credential_source> from);
    // Returns the URL of a request, and remembers its server.
    [[nodiscard]] url home(std::string text);
    [[nodiscard]] bool is_trusted(url const& to) const;
    [[nodiscard]] bool ends_within(std::chrono::seconds time) const;

    s3_options options_;
    tls_options tls_;
    store of_;
    std::string account_;  // of Azure
    bool may_know_;
    std::string bearer_;  // for Google and Azure only
    std::shared_ptr<credential_source> given_;
    std::shared_ptr<credential_source> fallback_;
    bool started_ = false;
    std::optional<credential_service> source_;     // of credentials that expire
    std::shared_ptr<credential_source> supplier_;  // instead of all others
    std::string sas_;                              // of Azure: a part of each URL

    mutable std::mutex mutex_;
    service at_;
    std::string home_;  // authority of the last where()
    bool moved_ = false;
    bool ended_ = false;
    bool renewing_ = false;
    std::optional<credentials> by_;
    request_credentials supplied_;  // by_, as the supplier knows them
};

}  // namespace gpurx::ingest::detail::s3
