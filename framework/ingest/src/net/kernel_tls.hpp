// SPDX-License-Identifier: Apache-2.0
//
// Decryption by the kernel (kTLS): records of a connection whose handshake OpenSSL has done. OpenSSL still encrypts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <gpurx/views.hpp>

struct ssl_st;  // OpenSSL's SSL

namespace gpurx::ingest::detail {

// A secret of TLS. Cleared at its end.
class tls_secret {
  public:
    tls_secret() = default;
    explicit tls_secret(std::vector<std::uint8_t> bytes) noexcept : bytes_{std::move(bytes)} {}
    tls_secret(tls_secret&&) noexcept = default;
    tls_secret& operator=(tls_secret&& other) noexcept
    {
        bytes_.swap(other.bytes_);
        return *this;
    }
    ~tls_secret();

    [[nodiscard]] std::vector<std::uint8_t> const& bytes() const noexcept { return bytes_; }

  private:
    std::vector<std::uint8_t> bytes_;
};

// Returns the secret of a line of SSLKEYLOGFILE with this label; empty: the line has another label.
[[nodiscard]] std::optional<tls_secret> secret_in(char const* line, char const* label);

class kernel_tls {
  public:
    // Has the kernel decrypt from now on. `ssl`: after its handshake; it has read no byte behind the handshake.
    // `traffic`: the server's first secret for data, with TLS 1.3. Returns nothing if the kernel lacks its module `tls`
    // or the cipher. OpenSSL can then go on.
    [[nodiscard]] static std::optional<kernel_tls> start(ssl_st const& ssl, int descriptor, tls_secret traffic);

    struct received {
        enum class kind : std::uint8_t {
            data,      // `bytes`, unless `number` is an error of recvmsg
            ended,     // without an alert
            alert,     // `number`: its description; 0: close_notify
            unwanted,  // `number`: type of a record or of a message that no server may send
        };
        kind what = kind::data;
        std::size_t bytes = 0;
        int number = 0;
    };
    // Does not wait. Records that are not data are written over `to`, too, and then processed.
    [[nodiscard]] received read(host_span to);

    // Returns whether the client must replace its own key before it writes data.
    [[nodiscard]] bool owes_key_update() const noexcept { return owes_key_update_; }
    void has_updated_key() noexcept { owes_key_update_ = false; }

  private:
    kernel_tls(ssl_st const& ssl, int descriptor, tls_secret traffic);

    // Gives the kernel the key of the secret. Returns errno.
    [[nodiscard]] int install(std::uint64_t first_record) const;
    [[nodiscard]] int install_next();
    [[nodiscard]] std::optional<received> process_alert();
    // Processes the complete messages of a handshake.
    [[nodiscard]] std::optional<received> process_messages();

    int descriptor_;
    int version_;
    int cipher_;                         // NID of OpenSSL
    char const* digest_;                 // of the cipher suite
    tls_secret traffic_;                 // TLS 1.3: the secret; TLS 1.2: the key and the IV
    std::vector<std::uint8_t> control_;  // of an incomplete alert or message
    int control_type_ = 0;
    bool owes_key_update_ = false;
};

}  // namespace gpurx::ingest::detail
