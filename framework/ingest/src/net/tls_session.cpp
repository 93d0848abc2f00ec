// SPDX-License-Identifier: Apache-2.0
#include "tls_session.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <boost/asio/error.hpp>
#include <boost/asio/ip/address.hpp>
#include <cerrno>
#include <gpurx/ingest/error.hpp>
#include <new>

#include "display.hpp"
#include "tls_words.hpp"

namespace gpurx::ingest::detail {

namespace {

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
    return outcome(SSL_do_handshake(ssl_.get()), 0);
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
    why_ = words_for_tls(code, SSL_get_verify_result(ssl_.get()), host_, peer_->names);
    return {.what = waits_for::nothing, .code = errc::tls_failure};
}

}  // namespace gpurx::ingest::detail
