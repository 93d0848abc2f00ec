// SPDX-License-Identifier: Apache-2.0
//
// A request with a small answer, on the host: for credentials and listings. A connection of its own, outside of any
// session.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "../net/header_field.hpp"
#include "../net/tls_context.hpp"
#include "../net/url.hpp"

namespace gpurx::ingest::detail::s3 {

struct exchange {
    std::string method = "GET";
    url to;
    header_fields fields;                     // besides Host
    tls_context tls = {};                     // for https; null: one of the system's authorities
    std::optional<url> proxy = {};            // that is asked to ask there
    std::chrono::milliseconds limit{};        // for all of it
    std::size_t most = std::size_t{1} << 20;  // bytes of the answer
};

struct small_answer {
    unsigned status = 0;
    std::string reason;
    std::string region;  // x-amz-bucket-region
    std::optional<std::chrono::seconds> retry_after;
    std::string body;
};

// Errors: what resolving, connecting and Beast report, as system_error without an object; errc::gave_up.
[[nodiscard]] asio::awaitable<small_answer> async_exchange(exchange what);

}  // namespace gpurx::ingest::detail::s3
