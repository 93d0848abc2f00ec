// SPDX-License-Identifier: Apache-2.0
//
// The transport of a connection's bytes, below HTTP: a flow of a session, or an ordinary socket with TLS or without.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gpurx/error.hpp>
#include <gpurx/session.hpp>
#include <gpurx/views.hpp>

#include "tls.hpp"

namespace gpurx::ingest::detail {

// Belongs to one strand. One operation of each direction at a time. Errors are results. close() ends pending
// operations.
class wire {
  public:
    using transferred = std::tuple<error_code, std::size_t>;

    wire() = default;
    wire(wire const&) = delete;
    wire& operator=(wire const&) = delete;
    virtual ~wire() = default;

    // Connects to the first endpoint that answers, as connection_race does. Completes when requests can be sent.
    [[nodiscard]] virtual asio::awaitable<error_code> async_connect(std::vector<asio::ip::tcp::endpoint> const& to) = 0;
    // Writes all of it.
    [[nodiscard]] virtual asio::awaitable<transferred> async_write(asio::const_buffer from) = 0;

    // Reads all of it. On a GPU, completion means "enqueued on the stream".
    [[nodiscard]] virtual asio::awaitable<transferred> async_read(memory_span to, cuda_stream_ref stream) = 0;
    // Reads at least one byte, for headers.
    [[nodiscard]] virtual asio::awaitable<transferred> async_read_some(asio::mutable_buffer to) = 0;
    [[nodiscard]] virtual asio::awaitable<transferred> async_skip(std::uint64_t bytes) = 0;

    // The peer that is connected, or awaited.
    [[nodiscard]] std::optional<asio::ip::tcp::endpoint> const& peer() const noexcept { return peer_; }

    // Bytes so far, with those that a waiting read leaves in the socket; and whether a read could take bytes now.
    [[nodiscard]] virtual std::uint64_t arrived() const noexcept = 0;
    [[nodiscard]] virtual bool at_hand() noexcept = 0;
    // While no read is pending: whether neither bytes nor the end have arrived.
    [[nodiscard]] virtual bool is_quiet() = 0;
    // More text about the last failure; empty if none.
    [[nodiscard]] virtual std::string why() const { return {}; }
    // Returns whether another connection may be spared the last failure of TLS.
    [[nodiscard]] virtual bool may_pass() const noexcept { return false; }
    virtual void close() noexcept = 0;

  protected:
    std::optional<asio::ip::tcp::endpoint> peer_;
};

// A flow of the session. Its bytes land in the session's memory.
[[nodiscard]] std::unique_ptr<wire> make_flow_wire(asio::any_io_executor const& executor, rx_session& session);

// An ordinary socket, outside of any session. With a context a CPU decrypts its bytes. `host`: name that the server's
// certificate must have. `tunnel`: request to the proxy for a connection, if the endpoints are the proxy's; otherwise
// empty.
[[nodiscard]] std::unique_ptr<wire> make_socket_wire(asio::any_io_executor const& executor, tls_context context,
                                                     std::string host, std::string tunnel = {});

}  // namespace gpurx::ingest::detail
