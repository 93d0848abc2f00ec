// SPDX-License-Identifier: Apache-2.0
#include "sha256.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <stdexcept>

void sha256::free_hash::operator()(evp_md_ctx_st* hash) const noexcept
{
    EVP_MD_CTX_free(hash);
}

sha256::sha256() : hash_{EVP_MD_CTX_new()}
{
    if (!hash_ || EVP_DigestInit_ex(hash_.get(), EVP_sha256(), nullptr) != 1)
        throw std::runtime_error{"libcrypto offers no SHA-256"};
}

void sha256::update(std::span<std::byte const> bytes)
{
    EVP_DigestUpdate(hash_.get(), bytes.data(), bytes.size());
}

std::string sha256::finish()
{
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned size = 0;
    EVP_DigestFinal_ex(hash_.get(), digest.data(), &size);
    std::string text;
    for (unsigned i = 0; i < size; ++i)
        text += fmt::format("{:02x}", digest[i]);
    return text;
}
