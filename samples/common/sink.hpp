// SPDX-License-Identifier: Apache-2.0
//
// Where received bytes go: their SHA-256, and a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <gpurx/rx_buffer.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "output.hpp"

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

// The SHA-256 of bytes that come one after the other.
class sha256 {
  public:
    sha256();

    void update(std::span<std::byte const> bytes);
    // Ends it. In hexadecimal digits.
    [[nodiscard]] std::string finish();

  private:
    struct free_hash {
        void operator()(evp_md_ctx_st* hash) const noexcept;
    };

    std::unique_ptr<evp_md_ctx_st, free_hash> hash_;
};

class sink {
  public:
    // An empty path: no file. Opens it, or finds out that it cannot be written (output.hpp). Throws
    // gpurx::system_error.
    explicit sink(std::filesystem::path const& path);

    // Throws gpurx::system_error when the file cannot take them.
    void write(std::span<std::byte const> bytes);
    // From where they lie in host memory, or brought from a GPU, in the order of `stream`.
    void write(std::span<gpurx::fragment const> fragments, gpurx::cuda_stream_ref stream = {});
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
    // The hash of it all, in hexadecimal digits.
    [[nodiscard]] std::string finish();
    // All has come, and is right: the file has its name. Throws gpurx::system_error.
    void commit();

  private:
    sha256 hash_;
    std::optional<output> file_;
    std::uint64_t bytes_ = 0;
    std::vector<std::byte> brought_;
};
