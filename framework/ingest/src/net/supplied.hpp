// SPDX-License-Identifier: Apache-2.0
//
// Credentials of a credential_source, for requests.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <string>

#include <gpurx/ingest/credentials.hpp>

#include "message.hpp"
#include "url.hpp"

namespace gpurx::ingest::detail {

// Runs the function in a thread of io_threads if it has to run. Errors: as credential_source::get().
[[nodiscard]] asio::awaitable<request_credentials> async_credentials(credential_source& from, std::string scheme);

[[nodiscard]] header_fields fields_of(request_credentials const& found);
// Returns the fields of a request to `to`: those of the credentials replace `own` ones of the same name. Errors:
// errc::no_credentials if they have no fields.
[[nodiscard]] header_fields with_fields(header_fields own, request_credentials const& found, url const& to);

// "https" or "http".
[[nodiscard]] std::string scheme_of(url const& to);

}  // namespace gpurx::ingest::detail
