// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Credentials that a function of the program supplies (fetch_options::credentials).
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpurx::ingest {

/// @brief Credentials of requests: keys that sign them, or header fields.
struct request_credentials {
    std::string access_key{};     ///< Access key of S3.
    std::string secret_key{};     ///< Its secret key.
    std::string session_token{};  ///< Its session token; empty: none.
    /// @brief Header fields that authenticate, such as `Authorization`. If set, nothing is signed.
    std::vector<std::pair<std::string, std::string>> headers{};
    /// @brief End of the credentials. Empty: they last until a server refuses them.
    std::optional<std::chrono::system_clock::time_point> expires{};

    /// @brief Returns whether there are no credentials.
    [[nodiscard]] bool empty() const noexcept { return access_key.empty() && headers.empty(); }
    friend bool operator==(request_credentials const&, request_credentials const&) = default;
};

/// @brief A function that supplies credentials, and its last results.
///
/// All objects and lists whose options have the same source share its results. So the function runs once, whatever the
/// number of connections, and again before the credentials expire. Vaults and the libraries of clouds fit behind it:
///
/// @code{.cpp}
/// #include <chrono>
/// #include <fstream>
/// #include <gpurx/ingest/http.hpp>
/// #include <memory>
/// #include <string>
///
/// // In a function
/// gpurx::ingest::fetch_options options;
/// options.credentials = std::make_shared<gpurx::ingest::credential_source>([](std::string_view) {
///     std::string token;
///     std::ifstream file{"/run/secrets/token"};
///     std::getline(file, token);
///     return gpurx::ingest::request_credentials{.headers = {{"Authorization", "Bearer " + token}},
///                                               .expires = std::chrono::system_clock::now() + std::chrono::hours{1}};
/// });
/// @endcode
///
/// @par Thread safety
/// Safe.
class credential_source {
  public:
    /// @brief Type of the function. Its parameter is the scheme of the URL: "s3", "gs", "az", "http" or "https".
    using function = std::function<request_credentials(std::string_view scheme)>;

    /// @brief Makes a source.
    ///
    /// @param ask The function. It runs in a thread of the library, never twice at the same time, and may block. No
    /// deadline or cancellation ends it, so it needs a time limit of its own. Its exceptions fail the operation, as
    /// errc::no_credentials with their text, unless earlier credentials are still valid.
    explicit credential_source(function ask) : ask_{std::move(ask)} {}

    /// @brief Clock of `request_credentials::expires`.
    using time_point = std::chrono::system_clock::time_point;
    /// @brief Returns the last credentials for this scheme. Empty: the function has to run.
    ///
    /// It has to run five minutes before the credentials expire, and after half the time if that is less.
    [[nodiscard]] std::optional<request_credentials> current(std::string_view scheme,
                                                             time_point now = std::chrono::system_clock::now()) const;
    /// @brief Returns credentials for this scheme, and runs the function if it has to run.
    ///
    /// It blocks until the function returns. While another thread renews credentials that are still valid, it returns
    /// those.
    ///
    /// @throws system_error errc::no_credentials: the function failed, or its result is unusable. The diagnostics have
    ///   no value of a key or a header.
    [[nodiscard]] request_credentials get(std::string_view scheme, time_point now = std::chrono::system_clock::now());
    /// @brief Records that a server has refused these credentials. If they are the last ones, the function has to run.
    void refuse(std::string_view scheme, request_credentials const& refused);

  private:
    struct result {
        request_credentials found;
        std::optional<time_point> renewal;
    };

    // Returns credentials that are valid, though it may be time to renew them.
    [[nodiscard]] std::optional<request_credentials> valid(std::string_view scheme, time_point now) const;

    function ask_;
    std::mutex asking_;         // held while the function runs
    mutable std::mutex mutex_;  // guards the member below
    std::map<std::string, result, std::less<>> last_;
};

}  // namespace gpurx::ingest
