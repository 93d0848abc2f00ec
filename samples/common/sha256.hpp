// SPDX-License-Identifier: Apache-2.0
//
// The SHA-256 of bytes that come one after the other.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

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
