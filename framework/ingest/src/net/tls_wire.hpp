// SPDX-License-Identifier: Apache-2.0
//
// A connection whose bytes a CPU decrypts: an ordinary socket, outside of any session. Nothing else can be done with
// TLS: a NIC would put into a GPU's memory what is encrypted.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tls_context.hpp"
#include "tls_session.hpp"
#include "wire.hpp"

namespace gpurx::ingest::detail {

class tls_wire final : public wire {
  public:
    // `host`: whose certificate the server has to have. `tunnel`: what asks a proxy for a connection to it, if the
    // endpoints are the proxy's; else empty.
    tls_wire(asio::any_io_executor const& executor, tls_context context, std::string host, std::string tunnel = {})
        : socket_{executor}, context_{std::move(context)}, host_{std::move(host)}, tunnel_{std::move(tunnel)}
    {}

    [[nodiscard]] asio::awaitable<error_code> async_connect(std::vector<asio::ip::tcp::endpoint> const& to) override;
    [[nodiscard]] asio::awaitable<transferred> async_write(asio::const_buffer from) override;
    // Through a buffer on the host, if that is a GPU's memory: what has been decrypted is on its way there while the
    // next is being decrypted.
    [[nodiscard]] asio::awaitable<transferred> async_read(memory_span to, cuda_stream_ref stream) override;
    [[nodiscard]] asio::awaitable<transferred> async_read_some(asio::mutable_buffer to) override;
    [[nodiscard]] asio::awaitable<transferred> async_skip(std::uint64_t bytes) override;
    [[nodiscard]] std::uint64_t arrived() const noexcept override;
    [[nodiscard]] bool at_hand() noexcept override;
    [[nodiscard]] bool is_quiet() override;
    [[nodiscard]] std::string why() const override;
    void close() noexcept override;

  private:
    [[nodiscard]] asio::awaitable<error_code> dig();
    [[nodiscard]] asio::awaitable<transferred> read(host_span to);
    // Until the step can go on.
    [[nodiscard]] asio::awaitable<error_code> wait_for(tls_session::step of);

    asio::ip::tcp::socket socket_;
    tls_context context_;
    std::string host_;
    std::string tunnel_;
    std::string refusal_;  // of the proxy
    std::optional<tls_session> session_;
    std::vector<std::byte> staging_;  // for a GPU, or for nobody
};

}  // namespace gpurx::ingest::detail
