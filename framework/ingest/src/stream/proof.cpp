// SPDX-License-Identifier: Apache-2.0
//
// Who knows the secret: what both sides of a tensor stream prove, with OpenSSL.
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <new>
#include <string>

#include "hello.hpp"

namespace gpurx::ingest::detail {

namespace {

void append_bytes(std::string& to, std::span<std::byte const> bytes)
{
    to.append(reinterpret_cast<char const*>(bytes.data()), bytes.size());
}

proof hmac_of(std::string_view secret, std::string const& text)
{
    proof result{};
    if (::HMAC(::EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
               reinterpret_cast<unsigned char const*>(text.data()), text.size(),
               reinterpret_cast<unsigned char*>(result.data()), nullptr) == nullptr)
        throw std::bad_alloc{};
    return result;
}

}  // namespace

nonce make_nonce()
{
    nonce result{};
    if (::RAND_bytes(reinterpret_cast<unsigned char*>(result.data()), static_cast<int>(result.size())) != 1)
        throw std::bad_alloc{};
    return result;
}

proof prove_sender(std::string_view secret, hello const& said, challenge const& asked)
{
    std::string text{"gpurx tensor stream 2, sender"};
    append_bytes(text, encode(said));
    append_bytes(text, encode(asked));
    return hmac_of(secret, text);
}

proof prove_receiver(std::string_view secret, hello const& said, challenge const& asked, welcome const& answer)
{
    std::string text{"gpurx tensor stream 2, receiver"};
    append_bytes(text, encode(said));
    append_bytes(text, encode(asked));
    auto const answered = encode(answer);
    append_bytes(text, std::span{answered}.first<welcome_size - proof_size>());
    return hmac_of(secret, text);
}

bool are_equal(proof const& left, proof const& right) noexcept
{
    return ::CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace gpurx::ingest::detail
