// SPDX-License-Identifier: Apache-2.0
//
// The S3 client of a download or a listing. It has the credentials and renews them, finds the bucket's region, and
// signs requests.
#pragma once

#include <boost/asio/awaitable.hpp>
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

// One for each server that has the buckets.
[[nodiscard]] std::vector<s3_options> servers_of(s3_options const& options);

// Once it has started, from any thread.
class client {
  public:
    client(s3_options options, tls_options tls) : options_{std::move(options)}, tls_{std::move(tls)} {}

    // Reads what there is to know, and gets credentials; once. Errors: errc::no_credentials, bad_url.
    [[nodiscard]] asio::awaitable<void> async_start();
    // Gets new ones if those it has end soon. What fails is an error only if they have ended.
    [[nodiscard]] asio::awaitable<void> async_renew();

    // Errors: errc::bad_url for an endpoint that cannot be used.
    [[nodiscard]] url where(location const& object);
    [[nodiscard]] url where(std::string_view bucket, parameters query);

    // The fields that a request with these has to have besides. None if it is anonymous, or if a redirect has led to a
    // server that is not the one of where(), nor AWS's as that: nobody else is to see a session's token.
    [[nodiscard]] header_fields sign(std::string_view method, url const& to, header_fields const& fields) const;

    // For who asks by himself.
    [[nodiscard]] tls_options const& tls() const noexcept { return tls_; }

    // The server says that the bucket is in that region. False: it has said so before, or nothing new.
    [[nodiscard]] bool move_to(std::string_view region);
    // The server says that the credentials have ended: async_renew() gets others. False: it has said so before, or
    // there are none to be had.
    [[nodiscard]] bool end_credentials();

  private:
    [[nodiscard]] bool is_trusted(url const& to) const;
    [[nodiscard]] bool ends_within(std::chrono::seconds time) const;

    s3_options options_;
    tls_options tls_;
    bool started_ = false;
    std::optional<credential_service> source_;  // of credentials that end

    mutable std::mutex mutex_;
    service at_;
    std::string home_;  // authority of the last where()
    bool moved_ = false;
    bool ended_ = false;
    bool renewing_ = false;
    std::optional<credentials> by_;
};

}  // namespace gpurx::ingest::detail::s3
