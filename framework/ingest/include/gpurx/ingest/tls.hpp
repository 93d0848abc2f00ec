// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Options of https: trusted certificates and client certificates.
#pragma once

#include <string>

namespace gpurx::ingest {

/// @brief Options of TLS. All files are PEM.
///
/// The library speaks TLS 1.2 or later. A server's certificate must be valid, name the URL's host, and lead to a
/// trusted certificate. No option turns these checks off.
struct tls_options {
    /// @brief File of trusted certificates.
    ///
    /// If this and `ca_directory` are empty, the library trusts the system's certificates, or those of the environment
    /// (`SSL_CERT_FILE`, `SSL_CERT_DIR`). If both are set, it trusts both.
    std::string ca_file;
    /// @brief Directory of trusted certificates, named as by `openssl rehash`.
    std::string ca_directory;

    /// @brief File of the client's certificate, for servers that authenticate clients.
    ///
    /// In the file, the certificates that lead to its CA follow.
    std::string certificate;
    /// @brief File of the certificate's key.
    ///
    /// Leave it empty if the key is in the file of the certificate.
    ///
    /// The library refuses a key that needs a password.
    std::string key;
};

}  // namespace gpurx::ingest
