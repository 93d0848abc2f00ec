// SPDX-License-Identifier: Apache-2.0
//
// TLS by OpenSSL: the context of all connections of a download, and the TLS session of one connection. A TLS session
// never waits: each step makes progress if it can, and returns the event to wait for.
#pragma once

#include <boost/asio/buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <gpurx/error.hpp>
#include <gpurx/ingest/tls.hpp>
#include <gpurx/views.hpp>

struct ssl_ctx_st;  // OpenSSL's SSL_CTX
struct ssl_st;      // OpenSSL's SSL

namespace gpurx::ingest::detail {

using tls_context = std::shared_ptr<ssl_ctx_st>;

// Reads the files. Errors: errc::tls_failure, as system_error that names the file.
[[nodiscard]] tls_context make_tls_context(tls_options const& options);

class tls_session {
  public:
    // `descriptor`: a connected, non-blocking socket. It must stay open while the caller makes steps. `host`: name or
    // address that the certificate must have.
    tls_session(tls_context const& context, std::string host, int descriptor);

    enum class waits_for { nothing, bytes, room };
    struct step {
        waits_for what = waits_for::nothing;
        error_code code;  // asio::error::eof: the peer has ended the connection, orderly or not
        std::size_t bytes = 0;
    };
    [[nodiscard]] step handshake();
    [[nodiscard]] step read(host_span to);
    [[nodiscard]] step write(asio::const_buffer from);

    // Received bytes.
    [[nodiscard]] std::uint64_t arrived() const noexcept { return peer_->arrived; }
    // Reason of the last failed step, for people.
    [[nodiscard]] std::string const& why() const noexcept { return why_; }

    // Returns whether the failure may be the connection's alone. That of a certificate is not. A refusal by the server
    // is not either, unless the handshake of another connection with this context has succeeded.
    [[nodiscard]] bool may_pass() const noexcept { return may_pass_; }

    // Input and results of OpenSSL's callbacks.
    struct peer {
        int descriptor;
        std::uint64_t arrived = 0;
        bool ended = false;
        int error = 0;
        std::string names = {};  // names of its certificate, if it was rejected
    };

  private:
    [[nodiscard]] step outcome(int result, std::size_t bytes);
    [[nodiscard]] step last_words(step broken);
    void expect(std::string const& host);

    std::string host_;
    std::unique_ptr<peer> peer_;
    std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
    std::string why_;
    bool is_greeted_ = false;  // the handshake has succeeded
    bool may_pass_ = false;
};

}  // namespace gpurx::ingest::detail
