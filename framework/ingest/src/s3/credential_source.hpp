// SPDX-License-Identifier: Apache-2.0
//
// Reads the environment and the profile files, and asks who hands out credentials.
#pragma once

#include <boost/asio/awaitable.hpp>

#include <gpurx/error.hpp>

#include "profile.hpp"

namespace gpurx::ingest::detail::s3 {

// Of a profile, as set_up() takes it. A file that is not there says nothing.
[[nodiscard]] setup read_setup(std::string const& profile);

// Errors: errc::no_credentials, with the service as the object.
[[nodiscard]] asio::awaitable<credentials> async_ask(credential_service at);

}  // namespace gpurx::ingest::detail::s3
