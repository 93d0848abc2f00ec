// SPDX-License-Identifier: Apache-2.0
//
// Certificates made for a test, and an authority that nobody else knows.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

struct evp_pkey_st;
struct x509_st;

namespace gpurx::test {

// All in PEM.
struct identity {
    std::string certificate;  // with those that lead to its authority behind it
    std::string key;
};

class certificate_authority {
  public:
    explicit certificate_authority(std::string const& name = "authority of the tests");

    struct wish {
        std::string for_whom = "IP:127.0.0.1,DNS:localhost";  // as subjectAltName has it
        long begins = -3600;                                  // seconds from now
        long ends = 3600;
    };
    [[nodiscard]] identity issue(wish const& what) const;
    [[nodiscard]] identity issue() const { return issue(wish{}); }
    [[nodiscard]] static identity self_signed();
    [[nodiscard]] std::string pem() const;

  private:
    std::shared_ptr<evp_pkey_st> key_;
    std::shared_ptr<x509_st> certificate_;
};

// In a file, for as long as this lives.
class file_with {
  public:
    explicit file_with(std::string const& content);
    file_with(file_with const&) = delete;
    file_with& operator=(file_with const&) = delete;
    ~file_with();

    [[nodiscard]] std::string path() const { return path_.string(); }

  private:
    std::filesystem::path path_;
};

}  // namespace gpurx::test
