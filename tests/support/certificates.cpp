// SPDX-License-Identifier: Apache-2.0
#include "certificates.hpp"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <stdexcept>

namespace gpurx::test {

namespace {

using key_ptr = std::shared_ptr<EVP_PKEY>;
using certificate_ptr = std::shared_ptr<X509>;

void require(bool good)
{
    if (!good)
        throw std::runtime_error{"OpenSSL does not make a certificate"};
}

key_ptr new_key()
{
    key_ptr key{EVP_EC_gen("P-256"), EVP_PKEY_free};
    require(key != nullptr);
    return key;
}

template <class Write>
std::string pem_of(Write write)
{
    std::unique_ptr<BIO, int (*)(BIO*)> const to{BIO_new(BIO_s_mem()), BIO_free};
    require(write(to.get()) == 1);
    char* text = nullptr;
    auto const size = BIO_get_mem_data(to.get(), &text);
    return {text, static_cast<std::size_t>(size)};
}

std::string pem_of(certificate_ptr const& certificate)
{
    return pem_of([&](BIO* to) { return PEM_write_bio_X509(to, certificate.get()); });
}

std::string pem_of(key_ptr const& key)
{
    return pem_of(
        [&](BIO* to) { return PEM_write_bio_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr); });
}

void extend(X509* certificate, X509* issuer, int what, std::string const& value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
    std::unique_ptr<X509_EXTENSION, void (*)(X509_EXTENSION*)> const made{
        X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str()), X509_EXTENSION_free};
    require(made != nullptr && X509_add_ext(certificate, made.get(), -1) == 1);
}

certificate_ptr blank(std::string const& name, key_ptr const& key, long begins, long ends)
{
    static std::atomic<long> serial{1};
    certificate_ptr made{X509_new(), X509_free};
    require(made != nullptr && X509_set_version(made.get(), 2) == 1);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), serial++);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), begins);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), ends);
    X509_set_pubkey(made.get(), key.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_UTF8,
                               reinterpret_cast<unsigned char const*>(name.c_str()), -1, -1, 0);
    return made;
}

void sign(certificate_ptr const& what, X509* issuer, key_ptr const& by)
{
    X509_set_issuer_name(what.get(), X509_get_subject_name(issuer));
    require(X509_sign(what.get(), by.get(), EVP_sha256()) > 0);
}

}  // namespace

certificate_authority::certificate_authority(std::string const& name)
    : key_{new_key()}, certificate_{blank(name, key_, -3600, 3600)}
{
    extend(certificate_.get(), certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
    extend(certificate_.get(), certificate_.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
    sign(certificate_, certificate_.get(), key_);
}

identity certificate_authority::issue(wish const& what) const
{
    auto const key = new_key();
    auto const made = blank("a server of the tests", key, what.begins, what.ends);
    extend(made.get(), certificate_.get(), NID_subject_alt_name, what.for_whom);
    sign(made, certificate_.get(), key_);
    return {.certificate = pem_of(made), .key = pem_of(key)};
}

identity certificate_authority::self_signed()
{
    auto const key = new_key();
    auto const made = blank("a server of the tests", key, -3600, 3600);
    extend(made.get(), made.get(), NID_subject_alt_name, "IP:127.0.0.1");
    sign(made, made.get(), key);
    return {.certificate = pem_of(made), .key = pem_of(key)};
}

std::string certificate_authority::pem() const
{
    return pem_of(certificate_);
}

file_with::file_with(std::string const& content)
{
    static std::atomic<unsigned> number{0};
    path_ = std::filesystem::temp_directory_path() /
            ("gpurx-" + std::to_string(::getpid()) + "-" + std::to_string(number++) + ".pem");
    std::ofstream{path_} << content;
}

file_with::~file_with()
{
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
}

}  // namespace gpurx::test
