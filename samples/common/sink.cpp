// SPDX-License-Identifier: Apache-2.0
#include "sink.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <gpurx/gather.hpp>
#include <stdexcept>
#include <system_error>

namespace {

[[noreturn]] void fail(std::filesystem::path const& path)
{
    throw std::system_error{errno, std::generic_category(), path.string()};
}

}  // namespace

void sink::free_hash::operator()(evp_md_ctx_st* hash) const noexcept
{
    EVP_MD_CTX_free(hash);
}

sink::sink(std::filesystem::path output) : hash_{EVP_MD_CTX_new()}, path_{std::move(output)}
{
    if (!hash_ || EVP_DigestInit_ex(hash_.get(), EVP_sha256(), nullptr) != 1)
        throw std::runtime_error{"libcrypto offers no SHA-256"};
    if (path_.empty())
        return;
    file_.reset(std::fopen(path_.c_str(), "wb"));
    if (!file_)
        fail(path_);
}

void sink::write(std::span<std::byte const> bytes)
{
    EVP_DigestUpdate(hash_.get(), bytes.data(), bytes.size());
    if (file_ && std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size())
        fail(path_);
    bytes_ += bytes.size();
}

void sink::write(std::span<gpurx::fragment const> fragments, gpurx::cuda_stream_ref stream)
{
    for (auto const& fragment : fragments) {
        auto const* bytes = reinterpret_cast<std::byte const*>(fragment.address);
        if (fragment.kind == gpurx::memory_kind::device) {
            brought_.resize(fragment.size);
            gpurx::device_span const here{gpurx::memory_kind::host, reinterpret_cast<std::uintptr_t>(brought_.data()),
                                          fragment.size};
            gpurx::gather({&fragment, 1}, here, stream);
            bytes = brought_.data();
        }
        write(std::span{bytes, fragment.size});
    }
}

std::string sink::finish()
{
    if (file_ && std::fclose(file_.release()) != 0)
        fail(path_);
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned size = 0;
    EVP_DigestFinal_ex(hash_.get(), digest.data(), &size);
    std::string text;
    for (unsigned i = 0; i < size; ++i)
        text += fmt::format("{:02x}", digest[i]);
    return text;
}
