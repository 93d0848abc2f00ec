// SPDX-License-Identifier: Apache-2.0
#include "tls.hpp"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/address.hpp>
#include <cerrno>
#include <filesystem>
#include <gpurx/ingest/error.hpp>
#include <new>
#include <string>
#include <system_error>

#include "environment.hpp"
#include "url.hpp"

namespace gpurx::ingest::detail {

namespace {

// What to change; empty: nobody knows.
std::string advice_for_certificate(long verified, std::string const& host, std::string const& names)
{
    switch (verified) {
        case X509_V_ERR_CERT_HAS_EXPIRED:
        case X509_V_ERR_CERT_NOT_YET_VALID:
            return "the server needs another certificate, or this machine's clock is wrong";
        case X509_V_ERR_HOSTNAME_MISMATCH:
        case X509_V_ERR_IP_ADDRESS_MISMATCH:
            return fmt::format("it is for {}, not for {}: use one of its names", names.empty() ? "another host" : names,
                               host);
        case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
        case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
        case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
        case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
        case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
            return "if you trust it, set its CA: tls_options::ca_file, Python's ca, gpurx-fetch --ca, or "
                   "SSL_CERT_FILE";
        default:
            return {};
    }
}

std::string advice_for(int reason)
{
    switch (reason) {
        case SSL_R_WRONG_VERSION_NUMBER:
        case SSL_R_PACKET_LENGTH_TOO_LONG:
            return "the server does not use TLS: check that the port is one for https";
        case SSL_R_UNSUPPORTED_PROTOCOL:
        case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
            return "the server has no TLS 1.2 or later";
        case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
            return "the server may require a client certificate: tls_options::certificate, gpurx-fetch --cert";
        case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
        case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
        case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
        case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
            return "the server rejects the client certificate: tls_options::certificate";
        case SSL_R_TLSV1_UNRECOGNIZED_NAME:
            return "the server does not serve that host";
        default:
            return {};
    }
}

// A server's refusal, which it would most likely repeat.
bool is_refusal(int reason)
{
    return reason != SSL_R_WRONG_VERSION_NUMBER && reason != SSL_R_PACKET_LENGTH_TOO_LONG &&
           !advice_for(reason).empty();
}

std::string joined(std::string const& words, std::string const& advice)
{
    return advice.empty() ? words : words + "; " + advice;
}

// `code`: of OpenSSL's queue of errors.
std::string words_of_openssl(unsigned long code)
{
    auto const* const reason = ERR_reason_error_string(code);
    if (reason != nullptr)
        return reason;
    return code == 0 ? "it gives no reason" : fmt::format("error {:x} of OpenSSL", code);
}

// `code` as above; `verified` as SSL_get_verify_result has it; `host` as the URL names it, and `names` those that the
// certificate has.
std::string words_for_tls(unsigned long code, long verified, std::string const& host, std::string const& names)
{
    if (verified != X509_V_OK)
        return joined(fmt::format("the server's certificate: {}", X509_verify_cert_error_string(verified)),
                      advice_for_certificate(verified, host, names));
    return joined("TLS: " + words_of_openssl(code), advice_for(ERR_GET_REASON(code)));
}

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
        fail(options.ca_file, "ca_file must be a file of certificates, in PEM");
    if (!options.ca_directory.empty() && SSL_CTX_load_verify_dir(context, options.ca_directory.c_str()) != 1)
        fail(options.ca_directory, "ca_directory must be a directory of certificates");
    // A file that the environment names wrongly is no reason to fail before a server has been asked.
    ERR_clear_error();
}

void introduce(SSL_CTX* context, tls_options const& options)
{
    if (options.certificate.empty() && options.key.empty())
        return;
    auto const& certificate = options.certificate;
    if (certificate.empty() || SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1)
        fail(certificate, "certificate must be a file with a certificate, in PEM");
    auto const& key = options.key.empty() ? certificate : options.key;
    if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1)
        fail(key, "key must be a file with the certificate's private key, in PEM, without a password");
}

// ---- a BIO on a socket: OpenSSL's own raises SIGPIPE, and does not count ----

tls_session::peer& peer_of(BIO* bio)
{
    return *static_cast<tls_session::peer*>(BIO_get_data(bio));
}

bool is_for_later(int error) noexcept
{
    return error == EAGAIN || error == EINTR;
}

int read_socket(BIO* bio, char* to, std::size_t size, std::size_t* read)
{
    auto& from = peer_of(bio);
    BIO_clear_retry_flags(bio);
    auto const result = ::recv(from.descriptor, to, size, 0);
    *read = result > 0 ? static_cast<std::size_t>(result) : 0;
    from.arrived += *read;
    from.ended = result == 0;
    from.error = result < 0 ? errno : 0;
    if (is_for_later(from.error))
        BIO_set_retry_read(bio);
    return result > 0 ? 1 : 0;
}

int write_socket(BIO* bio, char const* from, std::size_t size, std::size_t* written)
{
    auto& to = peer_of(bio);
    BIO_clear_retry_flags(bio);
    auto const result = ::send(to.descriptor, from, size, MSG_NOSIGNAL);
    *written = result > 0 ? static_cast<std::size_t>(result) : 0;
    to.error = result < 0 ? errno : 0;
    if (is_for_later(to.error))
        BIO_set_retry_write(bio);
    return result > 0 ? 1 : 0;
}

long control_socket(BIO* bio, int what, long /*number*/, void* /*data*/)
{
    if (what == BIO_CTRL_EOF)
        return peer_of(bio).ended ? 1 : 0;
    return what == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO_METHOD const* socket_method()
{
    static auto const method = [] {
        std::unique_ptr<BIO_METHOD, void (*)(BIO_METHOD*)> made{
            BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "gpurx"), BIO_meth_free};
        if (made != nullptr) {
            BIO_meth_set_read_ex(made.get(), read_socket);
            BIO_meth_set_write_ex(made.get(), write_socket);
            BIO_meth_set_ctrl(made.get(), control_socket);
        }
        return made;
    }();
    return method.get();
}

// ---- names ----

std::string names_of(X509* certificate)
{
    std::string names;
    auto* const found = static_cast<GENERAL_NAMES*>(
        certificate == nullptr ? nullptr : X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
    for (int i = 0; i < sk_GENERAL_NAME_num(found); ++i) {
        auto const* const name = sk_GENERAL_NAME_value(found, i);
        if (name->type != GEN_DNS)
            continue;
        auto const* const text = ASN1_STRING_get0_data(name->d.dNSName);
        names += names.empty() ? "" : ", ";
        names.append(reinterpret_cast<char const*>(text),
                     static_cast<std::size_t>(ASN1_STRING_length(name->d.dNSName)));
    }
    GENERAL_NAMES_free(found);
    return printable(names, 200);
}

int note_names(int is_good, X509_STORE_CTX* verification)
{
    auto const* const ssl =
        static_cast<SSL*>(X509_STORE_CTX_get_ex_data(verification, SSL_get_ex_data_X509_STORE_CTX_idx()));
    if (is_good == 0 && X509_STORE_CTX_get_error_depth(verification) == 0)
        static_cast<tls_session::peer*>(SSL_get_app_data(ssl))->names =
            names_of(X509_STORE_CTX_get_current_cert(verification));
    return is_good;
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

tls_session::tls_session(tls_context const& context, std::string host, int descriptor)
    : host_{std::move(host)},
      peer_{std::make_unique<peer>(peer{.descriptor = descriptor})},
      ssl_{SSL_new(context.get()), SSL_free}
{
    auto const* const method = socket_method();
    auto* const bio = method == nullptr ? nullptr : BIO_new(method);
    if (ssl_ == nullptr || bio == nullptr)
        throw std::bad_alloc{};
    BIO_set_data(bio, peer_.get());
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_app_data(ssl_.get(), peer_.get());
    SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, note_names);
    SSL_set_connect_state(ssl_.get());
    expect(host_);
}

// An address has no name to ask for.
void tls_session::expect(std::string const& host)
{
    error_code no_address;
    auto const address = asio::ip::make_address(host, no_address);
    if (!no_address) {
        X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), address.to_string().c_str());
        return;
    }
    SSL_set_tlsext_host_name(ssl_.get(), host.c_str());
    SSL_set_hostflags(ssl_.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    SSL_set1_host(ssl_.get(), host.c_str());
}

tls_session::step tls_session::handshake()
{
    ERR_clear_error();
    auto const result = SSL_do_handshake(ssl_.get());
    is_greeted_ = result == 1;
    return outcome(result, 0);
}

tls_session::step tls_session::read(host_span to)
{
    ERR_clear_error();
    std::size_t bytes = 0;
    auto const result = SSL_read_ex(ssl_.get(), to.data(), to.size(), &bytes);
    return outcome(result, bytes);
}

tls_session::step tls_session::write(asio::const_buffer from)
{
    ERR_clear_error();
    std::size_t bytes = 0;
    auto const result = SSL_write_ex(ssl_.get(), from.data(), from.size(), &bytes);
    auto const done = outcome(result, bytes);
    return done.code ? last_words(done) : done;
}

// With TLS 1.3 a server sees a client's certificate, or that there is none, after the client has gone on to write. Its
// alert came before its end of the connection was closed, and waits to be read.
tls_session::step tls_session::last_words(step broken)
{
    std::byte unwanted{};
    auto const said = read({&unwanted, 1});
    return said.code == errc::tls_failure ? said : broken;
}

tls_session::step tls_session::outcome(int result, std::size_t bytes)
{
    if (result == 1)
        return {.what = waits_for::nothing, .code = {}, .bytes = bytes};
    switch (SSL_get_error(ssl_.get(), result)) {
        case SSL_ERROR_WANT_READ:
            return {.what = waits_for::bytes, .code = {}};
        case SSL_ERROR_WANT_WRITE:
            return {.what = waits_for::room, .code = {}};
        case SSL_ERROR_ZERO_RETURN:
            return {.what = waits_for::nothing, .code = asio::error::eof};
        case SSL_ERROR_SYSCALL:
            return {.what = waits_for::nothing,
                    .code = peer_->error == 0 ? error_code{asio::error::eof}
                                              : error_code{peer_->error, boost::system::system_category()}};
        default:
            break;
    }
    auto const code = ERR_peek_error();
    if (ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
        return {.what = waits_for::nothing, .code = asio::error::eof};
    // The count includes this connection from the end of its handshake on.
    auto const others_are_sound = !is_greeted_ && SSL_CTX_sess_connect_good(SSL_get_SSL_CTX(ssl_.get())) > 0;
    may_pass_ =
        SSL_get_verify_result(ssl_.get()) == X509_V_OK && (others_are_sound || !is_refusal(ERR_GET_REASON(code)));
    why_ = words_for_tls(code, SSL_get_verify_result(ssl_.get()), host_, peer_->names);
    return {.what = waits_for::nothing, .code = errc::tls_failure};
}

}  // namespace gpurx::ingest::detail
