// SPDX-License-Identifier: Apache-2.0
//
// How https is spoken: whom to trust, and who asks.
#pragma once

#include <string>

namespace gpurx::ingest {

// TLS 1.2 or later. A server's certificate has to be valid, for the URL's host, and of somebody who is trusted; nothing
// turns that off. All files are PEM.
struct tls_options {
    // Who is trusted: a file of certificates, a directory of them (with names as `openssl rehash` makes them), or both.
    // Both empty: whom the system trusts, or the environment says (SSL_CERT_FILE, SSL_CERT_DIR).
    std::string ca_file;
    std::string ca_directory;

    // For servers that want to know who asks: a certificate, with those that lead to its CA behind it, and its key,
    // which may be in the same file (`key` is empty then). A key that needs a password is refused.
    std::string certificate;
    std::string key;
};

}  // namespace gpurx::ingest
