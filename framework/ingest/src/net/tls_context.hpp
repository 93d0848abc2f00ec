// SPDX-License-Identifier: Apache-2.0
//
// What all TLS connections of a download have in common: whom to trust, and who asks.
#pragma once

#include <gpurx/ingest/tls.hpp>
#include <memory>

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace gpurx::ingest::detail {

using tls_context = std::shared_ptr<ssl_ctx_st>;

// Reads the files. Errors: errc::tls_failure, as system_error that names the file.
[[nodiscard]] tls_context make_tls_context(tls_options const& options);

}  // namespace gpurx::ingest::detail
