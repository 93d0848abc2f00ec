// SPDX-License-Identifier: Apache-2.0
#include "tls_words.hpp"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

namespace gpurx::ingest::detail {

namespace {

// What to change; empty: nobody knows.
std::string advice_for_certificate(long verified, std::string const& host, std::string const& names)
{
    switch (verified) {
        case X509_V_ERR_CERT_HAS_EXPIRED:
        case X509_V_ERR_CERT_NOT_YET_VALID:
            return "the server needs another, or this machine's clock is wrong";
        case X509_V_ERR_HOSTNAME_MISMATCH:
        case X509_V_ERR_IP_ADDRESS_MISMATCH:
            return fmt::format("it is for {}, not for {}: use a name that it has",
                               names.empty() ? "another host" : names, host);
        case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
        case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
        case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
        case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
        case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
            return "if you trust it, name its CA: tls_options::ca_file, Python's ca, gpurx-fetch --ca, or "
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
            return "the server does not speak TLS: is the port one for http?";
        case SSL_R_UNSUPPORTED_PROTOCOL:
        case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
            return "the server has no TLS 1.2 or later";
        case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
            return "the server may want to know who asks: tls_options::certificate, gpurx-fetch --cert";
        case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
        case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
        case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
        case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
            return "the server does not take the certificate that it was shown: tls_options::certificate";
        case SSL_R_TLSV1_UNRECOGNIZED_NAME:
            return "the server does not know that host";
        default:
            return {};
    }
}

std::string joined(std::string const& words, std::string const& advice)
{
    return advice.empty() ? words : words + "; " + advice;
}

}  // namespace

std::string words_of_openssl(unsigned long code)
{
    auto const* const reason = ERR_reason_error_string(code);
    if (reason != nullptr)
        return reason;
    return code == 0 ? "it does not say why" : fmt::format("error {:x} of OpenSSL", code);
}

std::string words_for_tls(unsigned long code, long verified, std::string const& host, std::string const& names)
{
    if (verified != X509_V_OK)
        return joined(fmt::format("the server's certificate: {}", X509_verify_cert_error_string(verified)),
                      advice_for_certificate(verified, host, names));
    return joined("TLS: " + words_of_openssl(code), advice_for(ERR_GET_REASON(code)));
}

}  // namespace gpurx::ingest::detail
