// SPDX-License-Identifier: Apache-2.0
//
// What OpenSSL says, and what to do about it. Pure.
#pragma once

#include <string>

namespace gpurx::ingest::detail {

// `code`: of OpenSSL's queue of errors.
[[nodiscard]] std::string words_of_openssl(unsigned long code);

// Why a connection cannot go on: `code` as above; `verified` as SSL_get_verify_result has it; `host` as the URL names
// it, and `names` those that the certificate has.
[[nodiscard]] std::string words_for_tls(unsigned long code, long verified, std::string const& host,
                                        std::string const& names);

}  // namespace gpurx::ingest::detail
