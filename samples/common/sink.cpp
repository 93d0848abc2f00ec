// SPDX-License-Identifier: Apache-2.0
#include "sink.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <gpurx/gather.hpp>
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

sink::sink(std::filesystem::path const& path)
{
    if (!path.empty())
        file_.emplace(path);
}

void sink::write(std::span<std::byte const> bytes)
{
    hash_.update(bytes);
    if (file_)
        file_->write(bytes_, bytes);
    bytes_ += bytes.size();
}

void sink::write(std::span<gpurx::fragment const> fragments, gpurx::cuda_stream_ref stream)
{
    for (auto const& fragment : fragments) {
        auto const* bytes = reinterpret_cast<std::byte const*>(fragment.address);
        if (fragment.kind == gpurx::memory_kind::device) {
            brought_.resize(fragment.size);
            gpurx::memory_span const here{gpurx::memory_kind::host, reinterpret_cast<std::uintptr_t>(brought_.data()),
                                          fragment.size};
            gpurx::gather({&fragment, 1}, here, stream);
            bytes = brought_.data();
        }
        write(std::span{bytes, fragment.size});
    }
}

std::string sink::finish()
{
    return hash_.finish();
}

void sink::commit()
{
    if (file_)
        file_->commit();
}
