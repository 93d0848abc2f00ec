// SPDX-License-Identifier: Apache-2.0
//
// Where received bytes go: their SHA-256, and a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <gpurx/rx_buffer.hpp>
#include <memory>
#include <span>
#include <string>
#include <vector>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

class sink {
  public:
    // An empty path: no file. Throws std::system_error.
    explicit sink(std::filesystem::path output);

    // Throws std::system_error when the file cannot take them.
    void write(std::span<std::byte const> bytes);
    // From where they lie in host memory, or brought from a GPU, in the order of `stream`.
    void write(std::span<gpurx::fragment const> fragments, gpurx::cuda_stream_ref stream = {});
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
    // Ends it: closes the file, and returns the hash in hexadecimal digits. Throws std::system_error.
    [[nodiscard]] std::string finish();

  private:
    struct close_file {
        void operator()(std::FILE* file) const noexcept { std::fclose(file); }
    };
    struct free_hash {
        void operator()(evp_md_ctx_st* hash) const noexcept;
    };

    std::unique_ptr<evp_md_ctx_st, free_hash> hash_;
    std::unique_ptr<std::FILE, close_file> file_;
    std::filesystem::path path_;
    std::uint64_t bytes_ = 0;
    std::vector<std::byte> brought_;
};
