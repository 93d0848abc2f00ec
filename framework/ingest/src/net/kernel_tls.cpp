// SPDX-License-Identifier: Apache-2.0
#include "kernel_tls.hpp"

#include <fmt/format.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace gpurx::ingest::detail {

namespace {

using bytes = std::vector<std::uint8_t>;
using received = kernel_tls::received;

constexpr int alert_record = 21;
constexpr int handshake_record = 22;
constexpr int data_record = 23;
constexpr std::size_t alert_size = 2;
constexpr std::uint8_t user_canceled = 90;
constexpr std::size_t message_header = 4;
// Types of messages.
constexpr std::uint8_t hello_request = 0;
constexpr std::uint8_t new_session_ticket = 4;
constexpr std::uint8_t key_update = 24;
// Far above any ticket.
constexpr std::size_t message_limit = std::size_t{128} << 10;

// ---- derivation of keys ----

struct cipher_sizes {
    std::size_t key = 0;
    std::size_t iv = 0;  // without the part that each record of TLS 1.2 has
};

// Nothing: the kernel does not have the cipher.
std::optional<cipher_sizes> sizes_of(int cipher, int version) noexcept
{
    auto const gcm_iv = version == TLS1_3_VERSION ? 12U : 4U;
    switch (cipher) {
        case NID_aes_128_gcm:
            return cipher_sizes{16, gcm_iv};
        case NID_aes_256_gcm:
            return cipher_sizes{32, gcm_iv};
        case NID_chacha20_poly1305:
            return cipher_sizes{32, 12};
        default:
            return std::nullopt;
    }
}

// Empty: OpenSSL cannot.
bytes derive(char const* function, std::span<OSSL_PARAM const> parameters, std::size_t size)
{
    std::unique_ptr<EVP_KDF, void (*)(EVP_KDF*)> const kdf{EVP_KDF_fetch(nullptr, function, nullptr), EVP_KDF_free};
    std::unique_ptr<EVP_KDF_CTX, void (*)(EVP_KDF_CTX*)> const context{
        kdf == nullptr ? nullptr : EVP_KDF_CTX_new(kdf.get()), EVP_KDF_CTX_free};
    bytes result(size);
    if (context == nullptr || EVP_KDF_derive(context.get(), result.data(), size, parameters.data()) != 1)
        result.clear();
    return result;
}

OSSL_PARAM text(char const* key, char const* value)
{
    return OSSL_PARAM_construct_utf8_string(key, const_cast<char*>(value), 0);
}

OSSL_PARAM octets(char const* key, bytes const& value)
{
    return OSSL_PARAM_construct_octet_string(key, const_cast<std::uint8_t*>(value.data()), value.size());
}

// HKDF-Expand-Label of RFC 8446, section 7.1, without a context.
bytes expand(char const* digest, bytes const& secret, std::string_view label, std::size_t size)
{
    auto const name = fmt::format("tls13 {}", label);
    bytes info{static_cast<std::uint8_t>(size >> 8), static_cast<std::uint8_t>(size),
               static_cast<std::uint8_t>(name.size())};
    info.insert(info.end(), name.begin(), name.end());
    info.push_back(0);
    std::array const parameters{text(OSSL_KDF_PARAM_MODE, "EXPAND_ONLY"), text(OSSL_KDF_PARAM_DIGEST, digest),
                                octets(OSSL_KDF_PARAM_KEY, secret), octets(OSSL_KDF_PARAM_INFO, info),
                                OSSL_PARAM_construct_end()};
    return derive("HKDF", parameters, size);
}

// The server's key and IV of TLS 1.2: RFC 5246, section 6.3.
bytes server_part_of_key_block(SSL const& ssl, char const* digest, cipher_sizes sizes)
{
    bytes master(SSL_MAX_MASTER_KEY_LENGTH);
    master.resize(SSL_SESSION_get_master_key(SSL_get0_session(&ssl), master.data(), master.size()));
    constexpr std::string_view label = "key expansion";
    bytes seed(label.begin(), label.end());
    seed.resize(label.size() + 2 * SSL3_RANDOM_SIZE);
    SSL_get_server_random(&ssl, seed.data() + label.size(), SSL3_RANDOM_SIZE);
    SSL_get_client_random(&ssl, seed.data() + label.size() + SSL3_RANDOM_SIZE, SSL3_RANDOM_SIZE);
    tls_secret const keeps{std::move(master)};
    std::array const parameters{text(OSSL_KDF_PARAM_DIGEST, digest), octets(OSSL_KDF_PARAM_SECRET, keeps.bytes()),
                                octets(OSSL_KDF_PARAM_SEED, seed), OSSL_PARAM_construct_end()};
    // Keys of the client and the server, then their IVs.
    tls_secret const block{derive("TLS1-PRF", parameters, 2 * (sizes.key + sizes.iv))};
    auto const& all = block.bytes();
    if (all.empty())
        return {};
    auto const at = [&](std::size_t offset) { return all.begin() + static_cast<std::ptrdiff_t>(offset); };
    bytes part(at(sizes.key), at(2 * sizes.key));
    part.insert(part.end(), at(2 * sizes.key + sizes.iv), all.end());
    return part;
}

// ---- the kernel's structures ----

template <class Info>
int set_key(int descriptor, Info& info, int version, std::uint16_t cipher, std::uint64_t record)
{
    info.info.version = static_cast<std::uint16_t>(version);
    info.info.cipher_type = cipher;
    for (auto i = sizeof info.rec_seq; i-- > 0; record >>= 8)
        info.rec_seq[i] = static_cast<unsigned char>(record);
    auto const result = ::setsockopt(descriptor, SOL_TLS, TLS_RX, &info, sizeof info);
    auto const error = errno;
    OPENSSL_cleanse(&info, sizeof info);
    return result == 0 ? 0 : error;
}

// The first bytes of an IV are the salt. With TLS 1.2 the others come with each record.
template <class Info>
int set_gcm_key(int descriptor, bytes const& key, bytes const& iv, int version, std::uint16_t cipher,
                std::uint64_t record)
{
    Info info{};
    std::ranges::copy(key, info.key);
    std::copy_n(iv.begin(), sizeof info.salt, info.salt);
    std::copy(iv.begin() + sizeof info.salt, iv.end(), info.iv);
    return set_key(descriptor, info, version, cipher, record);
}

int set_chacha_key(int descriptor, bytes const& key, bytes const& iv, int version, std::uint64_t record)
{
    tls12_crypto_info_chacha20_poly1305 info{};
    std::ranges::copy(key, info.key);
    std::ranges::copy(iv, info.iv);
    return set_key(descriptor, info, version, TLS_CIPHER_CHACHA20_POLY1305, record);
}

// Type of the record that recvmsg() brought; 0: none.
int record_type(msghdr& message)
{
    auto const* const control = CMSG_FIRSTHDR(&message);
    if (control == nullptr || control->cmsg_level != SOL_TLS || control->cmsg_type != TLS_GET_RECORD_TYPE)
        return 0;
    return *CMSG_DATA(control);
}

}  // namespace

tls_secret::~tls_secret()
{
    OPENSSL_cleanse(bytes_.data(), bytes_.size());
}

std::optional<tls_secret> secret_in(char const* line, char const* label)
{
    std::string_view rest{line};
    if (!rest.starts_with(label) || rest.size() <= std::strlen(label) || rest[std::strlen(label)] != ' ')
        return std::nullopt;
    auto const* const hex = line + rest.rfind(' ') + 1;
    long size = 0;
    std::unique_ptr<unsigned char, void (*)(unsigned char*)> const decoded{
        OPENSSL_hexstr2buf(hex, &size), [](unsigned char* one) { OPENSSL_free(one); }};
    if (decoded == nullptr)
        return std::nullopt;
    tls_secret found{bytes(decoded.get(), decoded.get() + size)};
    OPENSSL_cleanse(decoded.get(), static_cast<std::size_t>(size));
    return found;
}

kernel_tls::kernel_tls(ssl_st const& ssl, int descriptor, tls_secret traffic)
    : descriptor_{descriptor},
      version_{SSL_version(&ssl)},
      cipher_{SSL_CIPHER_get_cipher_nid(SSL_get_current_cipher(&ssl))},
      digest_{EVP_MD_get0_name(SSL_CIPHER_get_handshake_digest(SSL_get_current_cipher(&ssl)))},
      traffic_{std::move(traffic)}
{}

std::optional<kernel_tls> kernel_tls::start(ssl_st const& ssl, int descriptor, tls_secret traffic)
{
    kernel_tls made{ssl, descriptor, std::move(traffic)};
    auto const sizes = sizes_of(made.cipher_, made.version_);
    if (!sizes)
        return std::nullopt;
    // With TLS 1.2 the server's last message of the handshake is its first encrypted record.
    std::uint64_t first_record = 0;
    if (made.version_ != TLS1_3_VERSION) {
        made.traffic_ = tls_secret{server_part_of_key_block(ssl, made.digest_, *sizes)};
        first_record = 1;
    }
    if (made.traffic_.bytes().empty() || ::setsockopt(descriptor, IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls" - 1) != 0 ||
        made.install(first_record) != 0)
        return std::nullopt;
    // Decrypts to the reader's memory, as servers seldom pad. Kernels before 6.0 lack it.
    unsigned const on = 1;
    if (made.version_ == TLS1_3_VERSION)
        static_cast<void>(::setsockopt(descriptor, SOL_TLS, TLS_RX_EXPECT_NO_PAD, &on, sizeof on));
    return made;
}

int kernel_tls::install(std::uint64_t first_record) const
{
    auto const sizes = sizes_of(cipher_, version_).value();
    bytes key;
    bytes iv;
    if (version_ == TLS1_3_VERSION) {
        key = expand(digest_, traffic_.bytes(), "key", sizes.key);
        iv = expand(digest_, traffic_.bytes(), "iv", sizes.iv);
    } else {
        auto const middle = traffic_.bytes().begin() + static_cast<std::ptrdiff_t>(sizes.key);
        key.assign(traffic_.bytes().begin(), middle);
        iv.assign(middle, traffic_.bytes().end());
    }
    tls_secret const kept_key{std::move(key)};
    tls_secret const kept_iv{std::move(iv)};
    if (kept_key.bytes().size() != sizes.key || kept_iv.bytes().size() != sizes.iv)
        return EINVAL;
    if (cipher_ == NID_chacha20_poly1305)
        return set_chacha_key(descriptor_, kept_key.bytes(), kept_iv.bytes(), version_, first_record);
    if (cipher_ == NID_aes_128_gcm)
        return set_gcm_key<tls12_crypto_info_aes_gcm_128>(descriptor_, kept_key.bytes(), kept_iv.bytes(), version_,
                                                          TLS_CIPHER_AES_GCM_128, first_record);
    return set_gcm_key<tls12_crypto_info_aes_gcm_256>(descriptor_, kept_key.bytes(), kept_iv.bytes(), version_,
                                                      TLS_CIPHER_AES_GCM_256, first_record);
}

// Kernels before 6.14 keep the first key, and the connection cannot go on.
int kernel_tls::install_next()
{
    traffic_ = tls_secret{expand(digest_, traffic_.bytes(), "traffic upd", traffic_.bytes().size())};
    return install(0);
}

kernel_tls::received kernel_tls::read(host_span to)
{
    for (;;) {
        alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(unsigned char))> control{};
        iovec where{.iov_base = to.data(), .iov_len = to.size()};
        msghdr message{};
        message.msg_iov = &where;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        auto const result = ::recvmsg(descriptor_, &message, 0);
        if (result < 0)
            return {.number = errno};
        auto const type = record_type(message);
        if (result == 0 && type == 0)
            return {.what = received::kind::ended};
        auto const size = static_cast<std::size_t>(result);
        // A kernel without a key for the socket would return what is encrypted.
        if (type != alert_record && type != handshake_record && type != data_record)
            return {.what = received::kind::unwanted, .number = type};
        // A message may continue in a record of its type only.
        if (!control_.empty() && type != control_type_)
            return {.what = received::kind::unwanted, .number = type};
        if (type == data_record) {
            if (size > 0)
                return {.bytes = size};
            continue;
        }
        control_type_ = type;
        auto const* const begin = reinterpret_cast<std::uint8_t const*>(to.data());
        control_.insert(control_.end(), begin, begin + size);
        if (auto const found = type == alert_record ? process_alert() : process_messages())
            return *found;
    }
}

std::optional<kernel_tls::received> kernel_tls::process_alert()
{
    if (control_.size() < alert_size)
        return std::nullopt;
    auto const description = control_[1];
    control_.clear();
    if (description == user_canceled)
        return std::nullopt;
    return received{.what = received::kind::alert, .number = description};
}

std::optional<kernel_tls::received> kernel_tls::process_messages()
{
    while (control_.size() >= message_header) {
        auto const type = control_[0];
        auto const size = std::size_t{control_[1]} << 16 | std::size_t{control_[2]} << 8 | control_[3];
        auto const is_new_key = version_ == TLS1_3_VERSION && type == key_update && size == 1;
        auto const is_known =
            type == new_session_ticket || is_new_key || (version_ != TLS1_3_VERSION && type == hello_request);
        if (!is_known || size > message_limit)
            return received{.what = received::kind::unwanted, .number = type};
        if (control_.size() < message_header + size)
            return std::nullopt;
        // Without sessions that are taken up again, no ticket is of use.
        if (is_new_key) {
            owes_key_update_ = owes_key_update_ || control_[message_header] == 1;
            if (auto const error = install_next(); error != 0)
                return received{.number = ECONNRESET};
        }
        control_.erase(control_.begin(), control_.begin() + static_cast<std::ptrdiff_t>(message_header + size));
    }
    return std::nullopt;
}

}  // namespace gpurx::ingest::detail
