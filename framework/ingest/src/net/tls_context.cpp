// SPDX-License-Identifier: Apache-2.0
#include "tls_context.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <gpurx/ingest/error.hpp>
#include <string>
#include <system_error>

#include "environment.hpp"
#include "tls_words.hpp"

namespace gpurx::ingest::detail {

namespace {

// Some records at a time: fewer calls than one each, and little enough that they stay in a core's own cache.
constexpr std::size_t read_ahead = std::size_t{32} << 10;

[[noreturn]] void fail(std::string file, std::string const& what_to_do)
{
    auto const code = ERR_peek_error();
    ERR_clear_error();
    throw system_error{errc::tls_failure,
                       {.operation = "use",
                        .object = std::move(file),
                        .kernel_message = {},
                        .advice = words_of_openssl(code) + "; " + what_to_do}};
}

// OpenSSL's own would ask at the terminal.
int no_password(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*data*/)
{
    return 0;
}

// Where systems keep those whom they trust: Debian's, Fedora's, SUSE's and Alpine's kinds, and Fedora's from 43 on.
constexpr std::array system_authorities{
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
};

bool is_filled(char const* path)
{
    std::error_code error;
    return !std::filesystem::is_empty(path, error) && !error;
}

void trust_the_system(SSL_CTX* context)
{
    SSL_CTX_set_default_verify_paths(context);
    auto const is_set = [](char const* name) { return !variable(name).empty(); };
    if (is_set(X509_get_default_cert_file_env()) || is_set(X509_get_default_cert_dir_env()) ||
        is_filled(X509_get_default_cert_file()) || is_filled(X509_get_default_cert_dir()))
        return;
    // An OpenSSL that came from another system, as that of a wheel does, looks where that one keeps them.
    if (auto const* const found = std::ranges::find_if(system_authorities, is_filled);
        found != system_authorities.end())
        SSL_CTX_load_verify_file(context, *found);
}

void trust(SSL_CTX* context, tls_options const& options)
{
    if (options.ca_file.empty() && options.ca_directory.empty())
        trust_the_system(context);
    if (!options.ca_file.empty() && SSL_CTX_load_verify_file(context, options.ca_file.c_str()) != 1)
        fail(options.ca_file, "ca_file has to be a file of certificates, in PEM");
    if (!options.ca_directory.empty() && SSL_CTX_load_verify_dir(context, options.ca_directory.c_str()) != 1)
        fail(options.ca_directory, "ca_directory has to be one of certificates");
    // A file that the environment names wrongly is no reason to fail before a server has been asked.
    ERR_clear_error();
}

void introduce(SSL_CTX* context, tls_options const& options)
{
    if (options.certificate.empty() && options.key.empty())
        return;
    auto const& certificate = options.certificate;
    if (certificate.empty() || SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1)
        fail(certificate, "certificate has to be a file with one, in PEM");
    auto const& key = options.key.empty() ? certificate : options.key;
    if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1)
        fail(key, "key has to be a file with the certificate's private key, in PEM, without a password");
}

}  // namespace

tls_context make_tls_context(tls_options const& options)
{
    ERR_clear_error();
    tls_context made{SSL_CTX_new(TLS_client_method()), SSL_CTX_free};
    if (made == nullptr)
        fail("OpenSSL", "it cannot be set up");
    auto* const context = made.get();
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, read_ahead);
    SSL_CTX_set_default_passwd_cb(context, no_password);
    trust(context, options);
    introduce(context, options);
    return made;
}

}  // namespace gpurx::ingest::detail
